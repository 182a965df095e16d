"""FC-39: a request is sent where its prompt and its asked answer fit, or refused at once with what is too long."""

from dataclasses import replace
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from tests.pool.gateway.rig import PIN_KEY, Rig, make_release, make_table

STABLE, CANDIDATE = 8192, 2048
WORDS_3K = "word " * 3000
PINNED: dict[str, Any] = {"key": PIN_KEY, "headers": {"x-sluice-release": "2"}}


async def serve(rig: Rig, settings: ModelSettings | None = None, *, engine_ctx: int = STABLE) -> None:
    """A candidate with a context of 2k beside a stable release with 8k."""
    stable = replace(await rig.start_engine("r1", max_ctx=engine_ctx), max_model_len=STABLE)
    candidate = replace(await rig.start_engine("r2", max_ctx=CANDIDATE), max_model_len=CANDIDATE)
    await rig.serve(
        make_table(
            make_release(1, stable), make_release(2, candidate), weights={1: 5, 2: 95}, settings=settings
        )
    )


async def test_what_the_candidate_cannot_hold_goes_to_the_stable_release(rig: Rig) -> None:
    await serve(rig)

    for session in range(20):
        answer = await rig.ask(
            messages=[{"role": "user", "content": WORDS_3K}],
            max_tokens=5,
            headers={"x-sluice-session": f"s{session}"},
        )
        assert (answer.status, answer.headers["x-sluice-release"]) == (200, "1")

    assert not rig.engines["r2"].completions


async def test_the_asked_answer_counts_too(rig: Rig) -> None:
    await serve(rig)

    answer = await rig.ask(max_tokens=3000)

    assert answer.headers["x-sluice-release"] == "1"
    assert not rig.engines["r2"].completions


async def test_short_ones_go_by_weight(rig: Rig) -> None:
    await serve(rig)

    releases = {
        (await rig.ask(max_tokens=5, headers={"x-sluice-session": f"s{n}"})).headers["x-sluice-release"]
        for n in range(40)
    }

    assert "2" in releases


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 9000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": WORDS_3K * 4}]}, "messages"),
    ],
)
async def test_what_nobody_can_hold_is_refused_before_an_engine_sees_it(
    rig: Rig, fields: dict[str, Any], param: str
) -> None:
    await serve(rig)

    answer = await rig.ask(**fields)

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == param
    assert str(STABLE) in answer.error["message"]
    assert not rig.engines["r1"].completions
    assert not rig.engines["r2"].completions


async def test_a_pinned_request_that_does_not_fit_is_refused_and_not_moved(rig: Rig) -> None:
    await serve(rig)

    answer = await rig.ask(max_tokens=3000, **PINNED)

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert not rig.engines["r1"].completions


async def test_within_a_release_it_goes_to_the_replica_that_holds_it(rig: Rig) -> None:
    large = replace(await rig.start_engine("r1"), max_model_len=STABLE)
    small = replace(await rig.start_engine("r2"), max_model_len=CANDIDATE)
    await rig.serve(make_table(make_release(1, large, small)))

    for _ in range(10):
        assert (await rig.ask(max_tokens=3000)).headers["x-sluice-replica"] == "r1"


async def test_the_engines_own_limit_is_told_as_it_says_it(rig: Rig) -> None:
    """An engine that holds less than it said: no retry, no fault of it."""
    one = replace(await rig.start_engine("r1", max_ctx=100), max_model_len=STABLE)
    other = replace(await rig.start_engine("r2", max_ctx=100), max_model_len=STABLE)
    await rig.serve(make_table(make_release(1, one, other)))

    answer = await rig.ask(messages=[{"role": "user", "content": "word " * 400}])

    assert answer.status == 400
    assert "maximum context length" in answer.error["message"]
    assert len(rig.engines["r1"].completions) + len(rig.engines["r2"].completions) == 1
    assert rig.replica("r1").breaker.closed
    assert rig.replica("r2").breaker.closed


async def test_with_truncation_a_long_conversation_is_cut_and_says_so(rig: Rig) -> None:
    await serve(rig, ModelSettings(truncation="message"), engine_ctx=2 * STABLE)
    turns = [
        {"role": role, "content": f"{number} " + "word " * 400}
        for number in range(12)
        for role in ("user", "assistant")
    ]

    answer = await rig.ask(messages=[*turns, {"role": "user", "content": "The end?"}], max_tokens=10)

    assert answer.status == 200
    tokens, unit = answer.headers["x-sluice-truncated"].split()
    assert (int(tokens) > 1000, unit) == (True, "tokens")
    body = rig.engines["r1"].completions[0].body
    assert b"0 word" in body
    assert b"The end?" in body
    assert b"6 word" not in body


@pytest.mark.parametrize("how", ["off", "message"])
async def test_what_cannot_be_cut_is_refused(rig: Rig, how: str) -> None:
    await serve(rig, ModelSettings(truncation=how))

    answer = await rig.ask(messages=[{"role": "user", "content": WORDS_3K * 4}])

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


async def test_paragraphs_are_cut_where_the_operator_lets_them(rig: Rig) -> None:
    await serve(rig, ModelSettings(truncation="paragraph"), engine_ctx=2 * STABLE)
    text = "\n\n".join(f"paragraph {number} " + "word " * 48 for number in range(200))

    answer = await rig.ask(messages=[{"role": "user", "content": text}], max_tokens=10)

    assert answer.status == 200
    assert int(answer.headers["x-sluice-truncated"].split()[0]) > 1000
    body = rig.engines["r1"].completions[0].body
    assert b"paragraph 0 " in body
    assert b"paragraph 199 " in body
    assert b"[...]" in body
