"""One try at one replica, where sockets cannot show it."""

from typing import Any, cast

from pool.gateway.attempt import Attempt, Owner
from pool.gateway.replicas import LiveReplica
from pool.gateway.upstream import Loss, Pool, UpstreamConnection
from tests.pool.gateway.rig import SECRET, make_replica


class RecordingPool(Pool):
    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", key="x")
        self.limits_s: list[float] = []

    def connect(self, receiver: Any, *, timeout_s: float) -> None:
        self.limits_s.append(timeout_s)


async def test_fc25_a_connection_that_the_engine_had_closed_is_replaced_within_the_limit_for_connecting() -> (
    None
):
    replica = LiveReplica(make_replica("r1", "http://127.0.0.1:9"), release=1, secret=SECRET)
    pool = replica.pool = RecordingPool()
    attempt = Attempt(cast(Owner, None), replica, b"", b"{}", timeout_s=120.0)
    attempt.start(0.0, connect_timeout_s=2.0)
    stale = UpstreamConnection(pool)
    stale.reused = True

    attempt.on_lost(stale, Loss.CLOSED)

    assert pool.limits_s == [2.0, 2.0]
