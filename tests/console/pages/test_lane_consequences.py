"""What follows from a change of lanes, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from console.pages.lane_consequences import lane_consequences
from pool.queries.lanes import LaneRow, LaneUse
from pool.services.lanes import LaneWish

SHORT = LaneRow(name="short", max_prompt_tokens=512, concurrency=32, weight=4)
MID = LaneRow(name="mid", max_prompt_tokens=2048, concurrency=8, weight=2, ttft_target_ms=800)
LONG = LaneRow(name="long", max_prompt_tokens=None, concurrency=2, ttft_target_ms=2000)
LANES = (SHORT, MID, LONG)
USE = LaneUse(
    lane="short", release=1, weight_percent=100, own=True, profile="balanced", wanted=2, ready=2, slots=48,
    kv_tokens=None, kv_bytes_per_token=None, context_tokens=None, block_tokens=None, batched_tokens=None,
    weights_as="", cache_as="",
)  # fmt: skip


def wish(lane: LaneRow, **changes: object) -> LaneWish:
    settings = {
        name: getattr(lane, name)
        for name in ("weight", "queue_limit", "adaptive", "late_gap_policy", "idle_timeout_s")
    }
    given = {"max_prompt_tokens": lane.max_prompt_tokens, "concurrency": lane.concurrency,
             "ttft_target_ms": lane.ttft_target_ms, **settings, **changes}  # fmt: skip
    figures = {name: given.pop(name) for name in ("max_prompt_tokens", "concurrency", "ttft_target_ms")}
    return LaneWish(lane.name, settings=given, **figures)


def told(*after: LaneWish, **facts: object) -> list[tuple[str, str]]:
    found = lane_consequences(LANES, after or [wish(lane) for lane in LANES], **facts)  # type: ignore[arg-type]
    return [(one["state"], one["text"]) for one in found]


def test_the_same_lanes_have_no_consequence() -> None:
    assert told() == []


def test_a_moved_edge_names_the_prompts_that_change_their_lane() -> None:
    moved = told(wish(SHORT, max_prompt_tokens=1024), wish(MID), wish(LONG))

    assert moved == [("busy", "Prompts of 512 to 1,023 tokens move from mid to short.")]


def test_a_lane_that_goes_hands_its_prompts_on() -> None:
    assert told(wish(SHORT, max_prompt_tokens=2048), wish(LONG)) == [
        ("warn", "mid goes. Its prompts belong to the next lane; what runs finishes."),
        ("busy", "Prompts of 512 to 2,047 tokens move from mid to short."),
        ("busy", "A busy shared replica is divided: short 80 %, long 20 %. Idle shares go to who waits."),
    ]


def test_a_lane_with_replicas_of_its_own_cannot_go() -> None:
    states = told(wish(MID), wish(LONG), uses=[USE])

    assert states[0][0] == "bad"
    assert "short cannot go" in states[0][1]


def test_a_new_last_lane_takes_the_longest() -> None:
    new = LaneWish("huge", None, 1, 5000)
    states = told(wish(SHORT), wish(MID), wish(LONG, max_prompt_tokens=32_768), new)

    assert ("busy", "Prompts from 32,768 tokens on move from long to huge.") in states
    assert any("huge is new" in text for _, text in states)


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"concurrency": 16}, "busy", "32 → 16 at once per replica. New requests queue sooner"),
        ({"concurrency": 40}, "busy", "32 → 40 at once per replica. More run"),
        ({"adaptive": False}, "busy", "short keeps 32 requests at once per replica"),
        ({"queue_limit": 0}, "warn", "nothing waits any more"),
        ({"queue_limit": 64}, "busy", "short: Queue limit 128 → 64 requests"),
        ({"late_gap_policy": "end"}, "warn", "is cut with stream_late"),
        ({"ttft_target_ms": 200}, "busy", "short: TTFT target 300 → 200 ms"),
        ({"idle_timeout_s": 90.0}, "busy", "short: Idle 60 → 90 s"),
        ({"tokens_per_min": 9000}, "busy", "short: Tokens per minute none → 9,000"),
    ],
)
def test_each_change_is_told(changes: dict[str, object], state: str, words: str) -> None:
    ((found, text),) = told(wish(SHORT, **changes), wish(MID), wish(LONG))

    assert found == state
    assert words in text


def test_more_than_the_slots_is_warned_of() -> None:
    states = told(wish(SHORT, concurrency=64), wish(MID), wish(LONG), uses=[USE])

    assert ("warn", "short: a replica has 48 slots, so more than that never run at once.") in states


def test_settings_that_go_back_are_told() -> None:
    before = [replace(SHORT, late_gap_policy="end", adaptive=False), MID, LONG]
    found = lane_consequences(before, [wish(SHORT), wish(MID), wish(LONG)])

    assert [one["text"] for one in found] == [
        "short finds its concurrency from its TTFT target.",
        "short: late streams are marked and go on.",
    ]


@pytest.mark.parametrize(
    ("replicas", "state", "words"),
    [
        (0, "bad", "has weight but no replica"),
        (1, "warn", "2 → 1 replicas"),
        (3, "busy", "once there is room"),
    ],
)
def test_a_wish_for_replicas_is_told(replicas: int, state: str, words: str) -> None:
    ((found, text),) = told(uses=[USE], scales={(1, "short"): replicas})

    assert found == state
    assert words in text


def test_weights_without_shared_replicas_change_nothing_yet() -> None:
    states = told(wish(SHORT, weight=8), wish(MID), wish(LONG), uses=[USE])

    assert any("the weights change nothing yet" in text for _, text in states)
