"""A newer routing table comes while requests wait: lanes, limits, weights, releases and replicas change live."""

from dataclasses import replace
from typing import Any

import pytest

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.routing_table import LaneRoute, ReplicaRoute, RoutingTable
from tests.pool.gateway.rig import Connection, Rig, chat_request, make_release, make_table

ONE: dict[str, Any] = {"concurrency": 1, "adaptive": False}
"""A lane that lets one request in at once."""
SLOW: dict[str, Any] = {"gap_s": 0.02, "chunks": 50}


def lane(name: str = "default", edge: int | None = None, **settings: Any) -> LaneRoute:
    return LaneRoute(name, edge, LaneSettings(**{**ONE, **settings}))


def release(number: int, *replicas: ReplicaRoute) -> Any:
    return make_release(number, *replicas)


async def occupy(rig: Rig, name: str = "r1", **fields: Any) -> Connection:
    """A stream that takes the only room for a second."""
    client = await rig.connect()
    before = len(rig.engines[name].completions)
    client.send(chat_request(stream=True, **fields))
    await rig.until(lambda: len(rig.engines[name].completions) > before)
    return client


async def queue_one(rig: Rig, **fields: Any) -> Connection:
    client = await rig.connect()
    before = count_waiting(rig)
    client.send(chat_request(max_tokens=2, **fields))
    await rig.until(lambda: count_waiting(rig) > before)
    return client


def count_waiting(rig: Rig) -> int:
    return sum(
        gate.waiting for model in rig.gateway.plane.routes.models.values() for gate in model.gates.values()
    )


async def two_releases(rig: Rig, **weights: Any) -> tuple[ReplicaRoute, ReplicaRoute]:
    first, second = await rig.start_engine("r1", **SLOW), await rig.start_engine("r2", **SLOW)
    await rig.serve(
        make_table(release(1, first), release(2, second), weights={1: 0, 2: 100}, lanes=(lane(),))
    )
    return first, second


async def test_fc45_what_waits_leaves_a_release_that_is_rolled_back(rig: Rig) -> None:
    first, second = await two_releases(rig)
    await occupy(rig, "r2")
    waiting = await queue_one(rig)

    rig.apply(
        make_table(release(1, first), release(2, second), weights={1: 100, 2: 0}, lanes=(lane(),), version=2)
    )

    answer = await waiting.read_response()
    assert (answer.status, answer.headers["x-sluice-release"]) == (200, "1")
    assert len(rig.engines["r2"].completions) == 1


async def test_what_waits_leaves_a_release_that_is_gone(rig: Rig) -> None:
    first, _ = await two_releases(rig)
    stream = await occupy(rig, "r2")
    waiting = await queue_one(rig)

    rig.apply(make_table(release(1, first), weights={1: 100}, lanes=(lane(),), version=2))

    assert (await waiting.read_response()).headers["x-sluice-release"] == "1"
    assert (await stream.read_response()).events[-1] == "[DONE]"


async def test_what_waits_for_a_replica_that_is_gone_spills(rig: Rig) -> None:
    first, _ = await two_releases(rig)
    await occupy(rig, "r2")
    waiting = await queue_one(rig)

    rig.apply(make_table(release(1, first), release(2), weights={1: 5, 2: 95}, lanes=(lane(),), version=2))

    assert (await waiting.read_response()).headers["x-sluice-release"] == "1"
    await rig.until(lambda: len(rig.gateway.plane.facts) == 1)
    (record,) = rig.gateway.plane.facts.take(1)
    assert (record["spilled"], record["wished_release"]) == (True, 2)


async def test_what_waits_for_the_only_replica_is_told_when_it_goes(rig: Rig) -> None:
    await two_releases(rig)
    await occupy(rig, "r2")
    waiting = await queue_one(rig)

    rig.apply(make_table(release(2), weights={2: 100}, lanes=(lane(),), version=2))

    answer = await waiting.read_response()
    assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")


async def test_what_waits_for_a_model_that_is_gone_is_told(rig: Rig) -> None:
    await two_releases(rig)
    await occupy(rig, "r2")
    waiting = await queue_one(rig)

    rig.apply(replace(make_table(version=2), models=()))

    answer = await waiting.read_response()
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_a_retry_goes_by_the_newest_plan(rig: Rig) -> None:
    first = await rig.start_engine("r1")
    second = await rig.start_engine("r2", ms_per_ktok=50_000, die_at=0)
    third = await rig.start_engine("r3")
    await rig.serve(make_table(release(1, first), release(2, second, third), weights={1: 0, 2: 100}))
    rig.replica("r3").in_flight = 1
    rig.replica("r3").in_flight_tokens = 1_000_000
    client = await rig.connect()
    client.send(chat_request())
    await rig.until(lambda: rig.engines["r2"].completions)

    rig.apply(make_table(release(1, first), release(2, second, third), weights={1: 100, 2: 0}, version=2))

    answer = await client.read_response()
    assert answer.headers["x-sluice-release"] == "1"
    assert not rig.engines["r3"].completions


def lanes_table(replica: ReplicaRoute, *lanes: LaneRoute, version: int) -> RoutingTable:
    return make_table(release(1, replica), lanes=lanes, version=version)


async def test_a_lane_that_is_gone_leaves_its_requests_to_the_others(rig: Rig) -> None:
    replica = await rig.start_engine(**SLOW)
    await rig.serve(lanes_table(replica, lane("short", 100), lane("long"), version=1))
    await occupy(rig)
    waiting = await queue_one(rig)

    rig.apply(lanes_table(replica, lane("all", concurrency=4), version=2))

    answer = await waiting.read_response()
    assert (answer.status, answer.headers["x-sluice-lane"]) == (200, "all")
    assert count_waiting(rig) == 0


async def test_new_edges_move_what_waits_to_its_new_lane(rig: Rig) -> None:
    replica = await rig.start_engine(**SLOW)
    await rig.serve(lanes_table(replica, lane("short", 4096), lane("long"), version=1))
    await occupy(rig)
    waiting = await queue_one(rig, messages=[{"role": "user", "content": "word " * 400}])

    rig.apply(lanes_table(replica, lane("short", 64), lane("long"), version=2))

    answer = await waiting.read_response()
    assert (answer.status, answer.headers["x-sluice-lane"]) == (200, "long")


async def test_more_room_lets_in_at_once_what_waits(rig: Rig) -> None:
    replica = await rig.start_engine(gap_s=0.05, chunks=400)
    await rig.serve(lanes_table(replica, lane(), version=1))
    await occupy(rig)
    waiting = await queue_one(rig)

    rig.apply(lanes_table(replica, lane(concurrency=2), version=2))

    assert (await waiting.read_response()).status == 200
    assert rig.engines["r1"].running == 1


async def test_less_room_holds_back_the_next(rig: Rig) -> None:
    replica = await rig.start_engine(**SLOW)
    await rig.serve(lanes_table(replica, lane(concurrency=2), version=1))
    await occupy(rig)

    rig.apply(lanes_table(replica, lane(), version=2))

    assert (await (await queue_one(rig)).read_response()).status == 200


async def test_a_shorter_wait_counts_for_what_waits_already(rig: Rig) -> None:
    replica = await rig.start_engine(gap_s=0.05, chunks=400)
    await rig.serve(lanes_table(replica, lane(), version=1))
    await occupy(rig)
    waiting = await queue_one(rig)

    rig.apply(lanes_table(replica, lane(queue_timeout_s=0.1), version=2))

    answer = await waiting.read_response()
    assert (answer.status, answer.error["code"]) == (429, "queue_timeout")


async def test_a_stream_that_runs_does_not_notice_a_new_table(rig: Rig) -> None:
    replica = await rig.start_engine(**SLOW)
    await rig.serve(lanes_table(replica, lane("short", 100), lane("long"), version=1))
    stream = await occupy(rig)

    rig.apply(lanes_table(replica, lane("other", total_timeout_s=0.1), version=2))

    answer = await stream.read_response()
    assert answer.events[-1] == "[DONE]"
    assert answer.headers["x-sluice-lane"] == "short"


async def test_a_follower_goes_by_the_newest_plan_when_its_leader_fails(rig: Rig) -> None:
    first = await rig.start_engine("r1")
    second = await rig.start_engine("r2", err=500, err_s=0.5)
    shared = ModelSettings(coalesce=True)
    await rig.serve(
        make_table(release(1, first), release(2, second), weights={1: 0, 2: 100}, settings=shared)
    )
    clients = [await rig.connect() for _ in range(2)]
    for client in clients:
        client.send(chat_request(temperature=0))
    await rig.until(lambda: rig.engines["r2"].completions and len(rig.gateway.plane.exchanges) == 2)

    rig.apply(
        make_table(release(1, first), release(2, second), weights={1: 100, 2: 0}, settings=shared, version=2)
    )

    answers = [await client.read_response() for client in clients]
    assert answers[1].headers["x-sluice-release"] == "1"
    assert len(rig.engines["r2"].completions) == 1


@pytest.mark.parametrize("count", [30])
async def test_tables_may_change_all_the_time(rig: Rig, count: int) -> None:
    first, second = await two_releases(rig)
    clients = [await rig.connect() for _ in range(count)]
    for client in clients:
        client.send(chat_request(max_tokens=2))

    for version in range(2, 2 + count):
        share = version % 2 * 100
        rig.apply(
            make_table(
                release(1, first), release(2, second), weights={1: share, 2: 100 - share},
                lanes=(lane(concurrency=1 + version % 3),), version=version,
            )
        )  # fmt: skip
        await rig.until(lambda: True)

    assert {(await client.read_response()).status for client in clients} == {200}
    assert count_waiting(rig) == 0
    assert [rig.replica(name).in_flight for name in ("r1", "r2")] == [0, 0]
