"""FC-35: text of many bytes per character passes whole, wherever the engine cuts its answer."""

import json

import pytest

from tests.pool.gateway.rig import Rig, chat_request
from tests.pool.gateway.tables import make_one

TEXT = "你好🌍 👩‍👩‍👧"


@pytest.mark.parametrize("pacing", [{}, {"pacing_ms": 1, "group_events": 2}])
async def test_a_stream_is_the_same_for_a_cut_at_every_byte(rig: Rig, pacing: dict[str, int]) -> None:
    await rig.serve(make_one(await rig.start_engine(text=TEXT), model=None, **pacing))
    engine = rig.engines["r1"]
    client = await rig.connect()
    client.send(chat_request(stream=True))
    whole = (await client.read_response()).body

    for offset in range(1, len(whole), 1 if not pacing else 17):
        engine.switches.cut = (offset,)
        client.send(chat_request(stream=True))
        answer = await client.read_response()
        # Ids of requests differ, but not their length.
        assert len(answer.body) == len(whole)
        assert answer.text.split(" ")[:2] == TEXT.split(" ")
        assert b"\xef\xbf\xbd" not in answer.body

    records = rig.gateway.plane.facts.take(2000)
    assert {(record["output_tokens"], record["estimated"]) for record in records} == {(2, False)}
    assert all(call.status == 200 for call in engine.completions)


async def test_a_plain_answer_is_the_same_for_a_cut_at_every_byte(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(text=TEXT)))
    engine = rig.engines["r1"]
    client = await rig.connect()
    client.send(chat_request())
    whole = (await client.read_response()).body

    for offset in range(1, len(whole)):
        engine.switches.cut = (offset,)
        client.send(chat_request())
        answer = await client.read_response()
        assert answer.body == bytes(engine.completions[-1].response)
        assert json.loads(answer.body)["choices"][0]["message"]["content"].strip() == TEXT
