"""Model → plan → release → replica, over the wire."""

import asyncio
from collections import Counter

import pytest

from pool.domain.routing_table import LaneRoute
from pool.gateway.openai import read_ask
from tests.pool.gateway.rig import KEY, PIN_KEY, Rig, chat_request, make_release, make_replica, make_table


@pytest.fixture
async def two(rig: Rig) -> Rig:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2")
    table = make_table(make_release(1, first), make_release(2, second), weights={1: 50, 2: 50})
    await rig.serve(table)
    return rig


async def releases_of(rig: Rig, *asks: bytes) -> list[str]:
    connection = await rig.connect()
    releases = []
    for ask in asks:
        connection.send(ask)
        releases.append((await connection.read_response()).headers["x-sluice-release"])
    return releases


async def test_fc45_different_conversations_spread_over_the_releases(two: Rig) -> None:
    releases = await releases_of(two, *(chat_request(prompt=f"question {turn}") for turn in range(60)))

    assert min(Counter(releases)[number] for number in ("1", "2")) > 15


async def test_fc45_a_session_stays_with_its_release(two: Rig) -> None:
    for session in range(8):
        headers = {"x-sluice-session": f"s{session}"}
        releases = await releases_of(two, *(chat_request(prompt=f"p{t}", headers=headers) for t in range(5)))
        assert len(set(releases)) == 1


async def test_a_user_stays_with_its_release(two: Rig) -> None:
    for user in range(8):
        releases = await releases_of(two, *(chat_request(prompt=f"p{t}", user=f"u{user}") for t in range(5)))
        assert len(set(releases)) == 1


async def test_a_conversation_stays_with_its_release_as_it_grows(two: Rig) -> None:
    for start in range(8):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"hello {start}"}]
        asks = []
        for turn in range(4):
            asks.append(chat_request(messages=list(messages)))
            messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": f"more {turn}"}]
        assert len(set(await releases_of(two, *asks))) == 1


@pytest.mark.parametrize("part", [b"[%b]", b'[{"text":%b}]'])
def test_fc38_content_that_nests_as_deep_as_json_may_has_no_opening(part: bytes) -> None:
    """The parser takes 1024 levels, more than Python may call."""
    content = b"1"
    for _ in range(500 if b"text" in part else 1000):
        content = part % content

    ask = read_ask(b"/v1/chat/completions", b'{"model":"m","messages":[{"content":%b}]}' % content)

    assert ask.opening == ""


async def test_load_spreads_over_the_replicas_of_a_release(rig: Rig) -> None:
    replicas = [await rig.start_engine(name, gap_s=0.02) for name in ("r1", "r2", "r3")]
    await rig.serve(make_table(make_release(1, *replicas)))

    answers = await asyncio.gather(*(rig.ask() for _ in range(12)))

    counts = Counter(answer.headers["x-sluice-replica"] for answer in answers)
    assert set(counts.values()) == {4}


async def test_a_release_without_replicas_spills_to_the_heaviest(rig: Rig) -> None:
    second, third = await rig.start_engine("r2"), await rig.start_engine("r3")
    weights = {1: 100 - 1, 2: 1, 3: 0}
    releases = (make_release(1), make_release(2, second), make_release(3, third))
    await rig.serve(make_table(*releases, weights=weights))

    asks = [chat_request(prompt=f"{turn}") for turn in range(9)]
    assert set(await releases_of(rig, *asks)) == {"2"}
    record = rig.gateway.plane.facts.take(1)[0]
    assert (record["spilled"], record["wished_release"], record["release"]) == (True, 1, 2)


async def test_weight_zero_never_receives_spill(rig: Rig) -> None:
    second = await rig.start_engine("r2")
    await rig.serve(make_table(make_release(1), make_release(2, second), weights={1: 100, 2: 0}))

    answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")


async def test_a_pinned_request_does_not_spill(rig: Rig) -> None:
    first = await rig.start_engine("r1")
    await rig.serve(make_table(make_release(1, first), make_release(2), weights={1: 100}))

    answer = await rig.ask(key=PIN_KEY, headers={"x-sluice-release": "2"})

    assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")


async def test_a_failed_replica_is_replaced_within_the_release_before_it_spills(rig: Rig) -> None:
    gone = make_replica("r1", f"unix:{rig.folder}/gone.sock")
    own, other = await rig.start_engine("r2"), await rig.start_engine("r3")
    releases = (make_release(1, gone, own), make_release(2, other))
    await rig.serve(make_table(*releases, weights={1: 99, 2: 1}))
    rig.replica("r2").in_flight = 1

    (release,) = await releases_of(rig, chat_request(headers={"x-sluice-session": "s1"}))

    assert release == "1"


async def test_a_plan_can_pin_the_callers_with_a_label(rig: Rig) -> None:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2")
    releases = (make_release(1, first), make_release(2, second))
    await rig.serve(make_table(*releases, weights={1: 100}, pins={"ops": 2}))

    assert await releases_of(rig, chat_request(key=PIN_KEY), chat_request(key=KEY)) == ["2", "1"]


async def test_prompts_go_to_the_replicas_of_their_lane(rig: Rig) -> None:
    short, long = await rig.start_engine("r1"), await rig.start_engine("r2")
    replicas = (
        make_replica("r1", short.address, lane="short"),
        make_replica("r2", long.address, lane="long"),
    )
    lanes = (LaneRoute("short", 100), LaneRoute("long", None))
    await rig.serve(make_table(make_release(1, *replicas), lanes=lanes))

    answers = [await rig.ask(prompt="hi"), await rig.ask(prompt="long " * 500)]

    assert [answer.headers["x-sluice-lane"] for answer in answers] == ["short", "long"]
    assert [answer.headers["x-sluice-replica"] for answer in answers] == ["r1", "r2"]


async def test_a_prompt_above_every_bound_goes_to_the_last_lane(rig: Rig) -> None:
    lanes = (LaneRoute("short", 10), LaneRoute("mid", 20))
    await rig.serve(make_table(make_release(1, await rig.start_engine()), lanes=lanes))

    answer = await rig.ask(prompt="long " * 500)

    assert answer.headers["x-sluice-lane"] == "mid"


async def test_a_lane_can_have_weights_of_its_own(rig: Rig) -> None:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2")
    releases = (make_release(1, first), make_release(2, second))
    lanes = (LaneRoute("short", 100), LaneRoute("long", None))
    await rig.serve(make_table(*releases, weights={1: 100}, lanes=lanes, lane_weights={"long": {2: 100}}))

    assert await releases_of(rig, chat_request(), chat_request(prompt="x " * 500)) == ["1", "2"]


async def test_a_model_without_a_plan_serves_nobody(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine()), weights={}))

    assert (await rig.ask()).status == 503


@pytest.mark.parametrize(
    ("fields", "opening"),
    [
        (b'"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]', "u"),
        (b'"messages":[{"role":"system","content":"s"}]', "s"),
        (b'"messages":[{"role":"user","content":[{"type":"text","text":"t"}]}]', "t"),
        (b'"messages":[]', ""),
        (b'"messages":["x"]', ""),
        (b'"prompt":"p"', "p"),
        (b'"prompt":["p","q"]', "p"),
        (b'"prompt":[1,2]', "1"),
        (b'"input":"i"', "i"),
        (b'"max_tokens":1', ""),
    ],
)
def test_the_opening_of_a_conversation_is_found_in_every_form(fields: bytes, opening: str) -> None:
    assert read_ask(b"/v1/chat/completions", b'{"model":"m",' + fields + b"}").opening == opening
