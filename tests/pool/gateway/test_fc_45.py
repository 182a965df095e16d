"""FC-45: the split follows the plan's weights alone: sticky, independent of replicas, and 0 means 0."""

from collections import Counter
from math import sqrt
from typing import Any

import pytest

from tests.pool.gateway.rig import (
    KEY,
    PIN_KEY,
    Rig,
    chat_request,
    make_key,
    make_release,
    make_replica,
    make_table,
)

CALLS = 2000
SIGMAS = 4.0
"""A fair split is outside of this once in 16,000; the sessions are the same in each run, so nothing flickers."""


def bounds(percent: int, calls: int) -> tuple[float, float]:
    share = percent / 100
    spread = SIGMAS * sqrt(calls * share * (1 - share))
    return calls * share - spread, calls * share + spread


class Fleet:
    """Any number of releases and replicas; each `serve` is one table more."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.version = 0

    async def serve(
        self, weights: dict[int, int], replicas: dict[int, int] | None = None, **plan: Any
    ) -> None:
        """`replicas` by release: 1 where it names none."""
        self.version += 1
        releases = []
        for release in weights:
            names = [f"r{release}{number}" for number in range((replicas or {}).get(release, 1))]
            for name in names:
                if name not in self.rig.engines:
                    await self.rig.start_engine(name)
            routes = (make_replica(name, self.rig.engines[name].address) for name in names)
            releases.append(make_release(release, *routes))
        table = make_table(*releases, weights=weights, version=self.version, **plan)
        if self.rig.gateways:
            assert self.rig.apply(table)
        else:
            await self.rig.serve(table)

    async def split(self, sessions: int = 300) -> list[str]:
        """The release of each session."""
        client = await self.rig.connect()
        releases = []
        for session in range(sessions):
            client.send(chat_request(max_tokens=1, headers={"x-sluice-session": f"session-{session}"}))
            answer = await client.read_response()
            assert answer.status == 200
            releases.append(answer.headers["x-sluice-release"])
        return releases


@pytest.fixture
def fleet(rig: Rig) -> Fleet:
    return Fleet(rig)


async def test_five_percent_of_2000_calls_lie_within_the_binomial_bound(fleet: Fleet) -> None:
    await fleet.serve({1: 95, 2: 5})

    count = Counter(await fleet.split(CALLS))

    low, high = bounds(5, CALLS)
    assert low <= count["2"] <= high


@pytest.mark.parametrize("replicas", [{1: 1, 2: 5}, {1: 5, 2: 1}])
async def test_the_number_of_replicas_changes_no_sessions_release(
    fleet: Fleet, replicas: dict[int, int]
) -> None:
    await fleet.serve({1: 70, 2: 30})
    before = await fleet.split()

    await fleet.serve({1: 70, 2: 30}, replicas)

    assert await fleet.split() == before
    low, high = bounds(30, len(before))
    assert low <= Counter(before)["2"] <= high


async def test_as_a_weight_grows_nobody_comes_back(fleet: Fleet) -> None:
    await fleet.serve({1: 99, 2: 1})
    at_candidate: set[int] = set()

    for percent in (5, 20, 50, 100):
        await fleet.serve({1: 100 - percent, 2: percent})
        now = {session for session, release in enumerate(await fleet.split()) if release == "2"}
        assert at_candidate <= now
        at_candidate = now

    assert len(at_candidate) == 300


async def test_after_a_rollback_and_a_second_candidate_the_first_one_gets_nothing(fleet: Fleet) -> None:
    await fleet.serve({1: 80, 2: 20, 3: 0})
    assert "2" in await fleet.split()
    await fleet.serve({1: 100, 2: 0, 3: 0})
    calls = len(fleet.rig.engines["r20"].completions)
    assert set(await fleet.split()) == {"1"}

    await fleet.serve({1: 80, 2: 0, 3: 20})

    assert set(await fleet.split()) == {"1", "3"}
    assert len(fleet.rig.engines["r20"].completions) == calls


async def test_zero_gets_nothing_when_the_others_fail(fleet: Fleet) -> None:
    await fleet.serve({1: 100, 2: 0})
    fleet.rig.engines["r10"].switches.err = 503

    for _ in range(10):
        assert (await fleet.rig.ask()).status == 503

    assert not fleet.rig.engines["r20"].completions


async def test_who_spills_is_marked_and_comes_back(fleet: Fleet) -> None:
    await fleet.serve({1: 50, 2: 50})
    before = await fleet.split(60)
    await fleet.serve({1: 50, 2: 50}, {2: 0})
    fleet.rig.gateway.plane.facts.take(1000)

    assert set(await fleet.split(60)) == {"1"}
    records = fleet.rig.gateway.plane.facts.take(1000)
    assert [str(record["wished_release"]) for record in records] == before
    assert [record["spilled"] for record in records] == [release == "2" for release in before]

    await fleet.serve({1: 50, 2: 50})
    assert await fleet.split(60) == before


async def test_spill_goes_to_the_heaviest_release_that_can_serve(fleet: Fleet) -> None:
    await fleet.serve({1: 20, 2: 50, 3: 30}, {2: 0})

    assert Counter(await fleet.split())["3"] > 200


async def test_a_pin_of_the_caller_goes_before_the_weights_and_never_spills(fleet: Fleet) -> None:
    await fleet.serve({1: 100, 2: 0})
    pinned: dict[str, Any] = {"key": PIN_KEY, "headers": {"x-sluice-release": "2"}}
    assert (await fleet.rig.ask(**pinned)).headers["x-sluice-release"] == "2"

    await fleet.serve({1: 100, 2: 0}, {2: 0})

    answer = await fleet.rig.ask(**pinned)
    assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")


async def test_a_pin_of_the_plan_holds_for_its_label_alone(fleet: Fleet) -> None:
    await fleet.serve({1: 100, 2: 0}, pins={"ops": 2}, keys=(make_key(KEY), make_key(PIN_KEY, label="ops")))

    assert (await fleet.rig.ask(key=PIN_KEY)).headers["x-sluice-release"] == "2"
    assert (await fleet.rig.ask()).headers["x-sluice-release"] == "1"


async def test_a_retry_stays_within_the_release_while_it_can(fleet: Fleet) -> None:
    await fleet.serve({1: 0, 2: 100}, {2: 2})
    fleet.rig.engines["r20"].switches.err = 503

    answers = [await fleet.rig.ask() for _ in range(8)]

    assert {(answer.status, answer.headers["x-sluice-release"]) for answer in answers} == {(200, "2")}
    assert not fleet.rig.engines["r10"].completions
