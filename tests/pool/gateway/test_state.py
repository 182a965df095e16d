"""Gauges that the clock sets from the states of gates and breakers."""

from pool.domain.breaker import Fault
from pool.domain.gateway_settings import ModelSettings
from pool.gateway.state import describe_plane, set_gauges
from tests.pool.gateway.rig import Rig, chat_request, make_release, make_table


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


async def test_bytes_prefixes_and_kept_answers_are_counted(rig: Rig) -> None:
    release = make_release(1, await rig.start_engine())
    plane = (await rig.serve(make_table(release, settings=ModelSettings(cache_s=60.0)))).plane
    plane.routes.models["m"].indexes[1].note_result(prompt_tokens=100, expected_tokens=60, engine_tokens=48)

    answers = [await rig.ask(temperature=0) for _ in range(3)]
    set_gauges(plane, 0.0)
    page = plane.metrics.render().decode()

    received = 3 * len(chat_request(temperature=0).partition(b"\r\n\r\n")[2])
    assert f"sluice_received_bytes_total {received}.0\n" in page
    assert f"sluice_sent_bytes_total {len(answers[0].body)}.0\n" in page
    assert 'sluice_affinity_expected_tokens_total{model="m",release="1"} 60.0\n' in page
    assert 'sluice_affinity_cached_tokens_total{model="m",release="1"} 48.0\n' in page
    assert 'sluice_answer_cache_total{model="m",result="hits"} 2.0\n' in page
    assert 'sluice_answer_cache_total{model="m",result="misses"} 1.0\n' in page


async def test_requests_over_a_limit_are_told_by_model(rig: Rig) -> None:
    release = make_release(1, await rig.start_engine())
    plane = (await rig.serve(make_table(release, settings=ModelSettings(requests_per_min=1)))).plane

    answers = [await rig.ask() for _ in range(3)]

    assert [answer.status for answer in answers] == [200, 429, 429]
    assert describe_plane(plane, 0.0)["models"]["m"]["rate_limited"] == 2
