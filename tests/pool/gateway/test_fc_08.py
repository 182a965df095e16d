"""FC-08 and FC-45 at the gate: a rollback cuts no stream and sends nothing more to the candidate."""

from __future__ import annotations

from tests.pool.gateway.rig import Rig, chat_request, make_release, make_table

BOTH, BACK = {1: 50, 2: 50}, {1: 100, 2: 0}


async def test_fc08_streams_of_the_candidate_finish_while_new_requests_go_to_stable(rig: Rig) -> None:
    releases = (
        make_release(1, await rig.start_engine("r1")),
        make_release(2, await rig.start_engine("r2", chunks=60, gap_s=0.005)),
    )
    await rig.serve(make_table(*releases, weights={1: 0, 2: 100}))
    client = await rig.connect()
    client.send(chat_request(stream=True, max_tokens=60))
    await client.read_until(b'"content"')

    rig.apply(make_table(*releases, weights=BACK, version=2))
    later = [(await rig.ask()).headers["x-sluice-release"] for _ in range(20)]
    running = await client.read_response()

    assert set(later) == {"1"}
    assert (running.headers["x-sluice-release"], running.events[-1]) == ("2", "[DONE]")
    assert '"finish_reason":"stop"' in running.body.decode().replace(" ", "")


async def test_fc08_what_waits_for_the_candidate_goes_to_stable_with_the_rollback(rig: Rig) -> None:
    releases = (
        make_release(1, await rig.start_engine("r1")),
        make_release(2, await rig.start_engine("r2", chunks=400, gap_s=0.02)),
    )
    lane = {"concurrency": 1, "adaptive": False}
    await rig.serve(make_table(*releases, weights={1: 0, 2: 100}, lane=lane))
    first, second = await rig.connect(), await rig.connect()
    first.send(chat_request(stream=True, max_tokens=400))
    await first.read_until(b'"content"')
    second.send(chat_request())
    await rig.until(lambda: any(gate.waiting for _, gate in rig.gateway.plane.routes.list_gates()))

    rig.apply(make_table(*releases, weights=BACK, version=2, lane=lane))
    answer = await second.read_response()

    assert (answer.status, answer.headers["x-sluice-release"]) == (200, "1")
    first.abort()


async def test_fc45_after_a_rollback_no_table_of_the_past_sends_traffic_back(rig: Rig) -> None:
    releases = (
        make_release(1, await rig.start_engine("r1")),
        make_release(2, await rig.start_engine("r2")),
    )
    await rig.serve(make_table(*releases, weights=BOTH, version=4))
    assert rig.apply(make_table(*releases, weights=BACK, version=5))

    taken = [
        rig.apply(make_table(*releases, weights=weights, version=version))
        for weights, version in ((BOTH, 4), (BOTH, 5), (BACK, 5))
    ]
    sessions = [{"x-sluice-session": f"s{number}"} for number in range(40)]
    served = [(await rig.ask(headers=one)).headers["x-sluice-release"] for one in sessions]

    assert taken == [False, False, False]
    assert set(served) == {"1"}
