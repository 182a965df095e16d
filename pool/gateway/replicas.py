"""What this process knows of each replica: requests in flight, last signs of life, pooled connections."""

from pool.domain.routing import ejection_s
from pool.domain.routing_table import ReplicaRoute
from pool.domain.signing import derive_engine_key
from pool.gateway.upstream import Pool


class LiveReplica:
    """Lives as long as the table names it or a request of it runs. Ages count from the loop's clock."""

    __slots__ = (
        "ejected_until_s", "failures", "generation", "id", "in_flight", "lane", "last_answer_at_s",
        "last_request_at_s", "listed", "node", "pool", "release", "unlisted_at_s",
    )  # fmt: skip

    def __init__(self, route: ReplicaRoute, *, release: int, secret: str, connect_timeout_s: float) -> None:
        key = derive_engine_key(secret, replica_id=route.id, generation=route.generation)
        self.id = route.id
        self.generation = route.generation
        self.node = route.node
        self.lane = route.lane
        self.release = release
        self.pool = Pool(route.address, key=key, connect_timeout_s=connect_timeout_s)
        self.in_flight = 0
        self.failures = 0
        self.ejected_until_s = 0.0
        self.last_request_at_s: float | None = None
        self.last_answer_at_s: float | None = None
        self.listed = True
        self.unlisted_at_s = 0.0

    def take_slot(self, now_s: float) -> None:
        self.in_flight += 1
        self.last_request_at_s = now_s

    def free_slot(self) -> None:
        self.in_flight -= 1

    def note_answer(self, now_s: float) -> None:
        self.last_answer_at_s = now_s
        self.failures = 0
        self.ejected_until_s = 0.0

    def eject(self, now_s: float) -> None:
        """Passed over for a while after it could not be reached."""
        self.failures += 1
        self.ejected_until_s = now_s + ejection_s(self.failures)

    def relist(self) -> None:
        self.listed = True
        self.pool.reopen()

    def unlist(self, now_s: float) -> None:
        self.listed = False
        self.unlisted_at_s = now_s
        self.pool.close()
