"""Prompts that are too long for every context, cut instead of refused, whoever reads the body."""

import json

import pytest

from pool.domain.gateway_settings import ModelSettings
from tests.pool.gateway.rig import Rig, make_release, make_table

CONTEXT_TOKENS = 8192


def talk(turns: int) -> list[dict[str, str]]:
    """Some 400 tokens a turn."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"turn {n} " + "word " * 200} for n in range(2 * turns + 1)]


@pytest.mark.parametrize("turns", [25, 200], ids=["read here", "read by a reader"])
async def test_the_middle_of_a_conversation_goes(rig: Rig, turns: int) -> None:
    # Without a tokenizer the gateway guesses, a tenth less than this engine counts.
    release = make_release(1, await rig.start_engine(max_ctx=10_000))
    plane = (await rig.serve(make_table(release, settings=ModelSettings(truncation="message")))).plane
    messages = talk(turns)

    answer = await rig.ask({"model": "m", "messages": messages, "max_tokens": 100})

    sent = json.loads(rig.engines["r1"].calls[-1].body)["messages"]
    cut = int(answer.headers["x-sluice-truncated"].removesuffix(" tokens"))
    assert answer.status == 200
    assert (sent[0], sent[-1]) == (messages[0], messages[-1])
    assert sum(len(one["content"]) for one in sent) < CONTEXT_TOKENS * 4.5
    assert cut > 400
    assert plane.routes.models["m"].correction.factor == 1.0


@pytest.mark.parametrize("words", [9000, 30_000], ids=["read here", "read by a reader"])
async def test_what_cannot_be_cut_is_refused(rig: Rig, words: int) -> None:
    release = make_release(1, await rig.start_engine())
    await rig.serve(make_table(release, settings=ModelSettings(truncation="message")))

    answer = await rig.ask({"model": "m", "messages": [{"role": "user", "content": "word " * words}]})

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
