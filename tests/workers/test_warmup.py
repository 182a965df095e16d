"""The warm-up against the fake engine and its faults; its figures and bounds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pool.domain.start_errors import StartCode
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.switches import Switches
from workers.completions import read_refusal
from workers.warmup import (
    WarmUpCancelled,
    WarmUpFailed,
    WarmUpLane,
    WarmUpRecipe,
    WarmUpTarget,
    is_level,
    probe_engine,
    warm_up,
)

Start = Callable[..., FakeEngine]
LANES = (WarmUpLane("short", 200), WarmUpLane("long"))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts fake engines on a loop of their own, since the warm-up blocks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engines: list[FakeEngine] = []

    def make(**switches: Any) -> FakeEngine:
        engine = FakeEngine(Switches(model="m", chunks=4, **switches))
        asyncio.run_coroutine_threadsafe(engine.start(), loop).result(5)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    with contextlib.suppress(RuntimeError):
        loop.close()


def target_of(engine: FakeEngine, **fields: Any) -> WarmUpTarget:
    return WarmUpTarget(engine.address, "m", "", **fields)


def test_every_lane_gets_its_share_and_the_whole_is_bounded(start: Start) -> None:
    engine = start()

    figures = warm_up(target_of(engine), WarmUpRecipe(lanes=LANES, per_lane=8, budget_s=60))

    assert [lane.lane for lane in figures.lanes] == ["short", "long"]
    assert all(lane.requests >= 8 for lane in figures.lanes)
    assert figures.requests <= 50
    assert figures.reason == ""


def test_both_routes_are_taken_whole_and_streamed(start: Start) -> None:
    engine = start()

    warm_up(target_of(engine), WarmUpRecipe(per_lane=2, budget_s=60))

    seen = {(call.path, b'"stream": true' in call.body) for call in engine.completions}
    assert seen >= {
        ("/v1/chat/completions", True),
        ("/v1/chat/completions", False),
        ("/v1/completions", True),
        ("/v1/completions", False),
    }


def test_prompts_stay_within_the_lane_and_the_context(start: Start) -> None:
    engine = start(max_ctx=300)

    figures = warm_up(
        target_of(engine, max_model_len=300), WarmUpRecipe(lanes=LANES, per_lane=3, budget_s=60)
    )

    assert figures.lanes[0].prompt_tokens <= 200
    assert figures.lanes[1].prompt_tokens <= 300
    assert all(call.status == 200 for call in engine.completions)


def test_prompts_are_no_longer_than_two_seconds_of_measured_prefill(start: Start) -> None:
    engine = start(ms_per_ktok=2000)

    figures = warm_up(
        target_of(engine, max_model_len=8000),
        WarmUpRecipe(per_lane=1, max_requests=6, budget_s=60, max_prefill_s=0.2),
    )

    assert figures.lanes[0].prompt_tokens < 200


def test_no_two_prompts_share_a_prefix(start: Start) -> None:
    engine = start()

    warm_up(target_of(engine), WarmUpRecipe(routes=("completions",), per_lane=4, budget_s=60))

    beginnings = [call.body.split(b'"prompt": "')[1][:24] for call in engine.completions]
    assert len(set(beginnings)) == len(beginnings)


def test_the_budget_cuts_the_warm_up_and_says_so(start: Start) -> None:
    engine = start(gap_s=0.05)

    figures = warm_up(target_of(engine), WarmUpRecipe(lanes=LANES, per_lane=20, budget_s=2.0))

    assert figures.reason == "warm_up_cut"
    assert figures.took_s < 4


def test_fc_09_a_dying_engine_fails_the_warm_up(start: Start) -> None:
    engine = start(close_at=2)

    with pytest.raises(WarmUpFailed) as caught:
        warm_up(target_of(engine), WarmUpRecipe(budget_s=20))

    assert caught.value.failure.code is StartCode.ENGINE_DIED
    assert not caught.value.failure.permanent


def test_fc_09_an_error_answer_fails_the_warm_up(start: Start) -> None:
    engine = start(err=500)

    with pytest.raises(WarmUpFailed, match="answered 500"):
        warm_up(target_of(engine), WarmUpRecipe(budget_s=20))


def test_nobody_at_the_address_fails_the_warm_up() -> None:
    with pytest.raises(WarmUpFailed) as caught:
        warm_up(WarmUpTarget("unix:/nowhere", "m", ""), WarmUpRecipe())

    assert caught.value.failure.code is StartCode.ENGINE_DIED


def test_a_cancelled_warm_up_ends_at_once(start: Start) -> None:
    cancelled = threading.Event()
    cancelled.set()

    with pytest.raises(WarmUpCancelled):
        warm_up(target_of(start()), WarmUpRecipe(), cancelled=cancelled)


def test_fc_75_a_missing_template_is_permanent() -> None:
    body = b'{"error": {"message": "As of transformers v4.44, default chat template is no longer allowed."}}'

    found = read_refusal(400, body, "/v1/chat/completions")

    assert (found.code, found.permanent) == (StartCode.NO_CHAT_TEMPLATE, True)


def test_another_refusal_is_a_bad_argument_without_the_prompt() -> None:
    found = read_refusal(400, b'{"error": {"message": "max_tokens must be at least 1\\nwarm warm"}}', "/x")

    assert found.code is StartCode.BAD_ARGUMENT
    assert "warm warm" not in found.message


def test_an_unreadable_refusal_is_still_told() -> None:
    assert (
        read_refusal(503, b"<html>", "/x").message
        == "The engine answered 503 to a warm-up completion on /x: "
    )


@pytest.mark.parametrize(
    ("ttfts", "level"),
    [
        ([0.5, 0.1, 0.1, 0.1], True),
        ([0.5, 0.3, 0.1], False),
        ([0.1, 0.1], False),
        ([0.001, 0.004, 0.002], True),
    ],
)
def test_a_plateau_is_three_times_within_a_band(ttfts: list[float], level: bool) -> None:
    assert is_level(ttfts) is level


def test_fc_01_a_probe_of_a_hung_engine_fails_in_its_time(start: Start) -> None:
    engine = start(hang_after=0)

    assert not probe_engine(engine.address, model="m", engine_key="", timeout_s=0.3)


def test_a_probe_asks_for_one_token(start: Start) -> None:
    engine = start()

    assert probe_engine(engine.address, model="m", engine_key="", timeout_s=3)

    assert b'"max_tokens": 1,' in engine.completions[0].body
