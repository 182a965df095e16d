"""What this process knows of each replica: load, last signs of life, breaker, pooled connections."""

from pool.domain.affinity import ReplicaCache
from pool.domain.breaker import Breaker
from pool.domain.progress import ProgressWatch
from pool.domain.routing_table import ReplicaRoute
from pool.domain.signing import derive_engine_key
from pool.gateway.tickets import Replica
from pool.gateway.upstream import Pool


class LiveReplica(Replica):
    """Lives as long as the table names it or a request of it runs. Times are monotonic.

    The counts of requests and tokens belong to the release's gate, which alone writes them.
    """

    __slots__ = (
        "cached", "engine", "last_answer_at_s", "last_byte_at_s", "last_request_at_s", "last_sent_at_s", "listed",
        "node", "own_lines", "pool", "release", "unlisted_at_s", "waiting", "watch",
    )  # fmt: skip

    def __init__(self, route: ReplicaRoute, *, release: int, secret: str) -> None:
        key = derive_engine_key(secret, replica_id=route.id, generation=route.generation)
        self.id = route.id
        self.generation = route.generation
        self.node = route.node
        self.lane = route.lane
        self.release = release
        self.max_model_len = route.max_model_len
        self.slots = route.slots
        self.kv_tokens = route.kv_tokens
        self.pool = Pool(route.address, key=key)
        self.engine = f"{route.id}.{route.generation}"
        """Which death of an engine is which."""
        self.in_flight = 0
        self.lane_in_flight: dict[str, int] = {}
        self.in_flight_tokens = 0
        self.prefill_tokens = 0
        self.long_in_flight = 0
        self.others_in_flight: int | None = None
        self.others_tokens: int | None = None
        self.kv_used_ratio: float | None = None
        self.waiting: int | None = None
        self.gauges_at_s: float | None = None
        self.breaker = Breaker()
        self.watch = ProgressWatch()
        self.cached: ReplicaCache | None = None
        self.last_request_at_s: float | None = None
        self.last_sent_at_s = 0.0
        """When a request was last written to it; 0 = never. A connection may have to be made first."""
        self.last_answer_at_s: float | None = None
        self.last_byte_at_s = 0.0
        self.listed = True
        self.unlisted_at_s = 0.0
        self.own_lines: dict[str, bytes] = {}
        """Lane → the header lines that name release, replica and lane."""

    @property
    def error_score(self) -> float:
        return self.breaker.error_score

    def lines_for(self, lane: str) -> bytes:
        lines = self.own_lines.get(lane)
        if lines is None:
            text = f"x-sluice-release: {self.release}\r\nx-sluice-replica: {self.id}\r\nx-sluice-lane: {lane}\r\n"
            lines = self.own_lines[lane] = text.encode()
        return lines

    def update(self, route: ReplicaRoute) -> None:
        """From a newer table: what an engine of the same generation may still learn of itself."""
        self.max_model_len = route.max_model_len
        self.slots = route.slots
        self.kv_tokens = route.kv_tokens
        if not self.listed:
            self.listed = True
            self.pool.reopen()

    def unlist(self, now_s: float) -> None:
        self.listed = False
        self.unlisted_at_s = now_s
        self.pool.close()
