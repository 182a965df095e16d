"""Gauges that the clock sets from the states of gates and breakers."""

from pool.domain.breaker import Fault
from pool.gateway.state import set_gauges
from tests.pool.gateway.rig import Rig, make_release, make_table


async def test_growth_is_shown_once_it_is_known(rig: Rig) -> None:
    plane = (await rig.serve(make_table(make_release(1, await rig.start_engine())))).plane
    lane = plane.routes.models["m"].gates[1]._order[0]

    set_gauges(plane, 0.0)
    unknown = plane.metrics.render()
    lane.growth.growth_ratio = 0.25
    set_gauges(plane, 0.0)

    name = b'pending_requests_growth_ratio{model="m",release="1",lane="default"}'
    assert name not in unknown
    assert name + b" 0.25" in plane.metrics.render()


async def test_a_replica_that_is_gone_has_no_open_breaker(rig: Rig) -> None:
    plane = (await rig.serve(make_table(make_release(1, await rig.start_engine())))).plane
    replica = rig.replica()
    replica.breaker.note_failure(Fault.CONNECT, 0.0)

    set_gauges(plane, 0.0)
    before = plane.metrics.render()
    rig.apply(make_table(make_release(1), version=2))
    plane.routes.forget_old(replica.unlisted_at_s + 3600)
    set_gauges(plane, 0.0)

    assert b'sluice_breaker_open{replica="r1"} 1.0' in before
    assert b"sluice_breaker_open{" not in plane.metrics.render()
