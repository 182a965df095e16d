"""The pool with real reader processes."""

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from pool.gateway.config import Config
from pool.gateway.openai import InvalidRequest
from pool.gateway.reading.body import Reading
from pool.gateway.reading.readers import Readers
from pool.gateway.refusals import Overloaded
from tests.pool.gateway.loop_watch import watch_loop
from tests.pool.gateway.reading.conftest import (
    Files,
    chat_body,
    count,
    cut,
    make_model,
    make_release,
    read,
    wait_until,
    wait_until_ready,
)

CHAT = b"/v1/chat/completions"
LONGEST_S = 0.020


@pytest.fixture
async def ready(readers: Readers, config: Config, files: Files) -> Readers:
    files.write_to(config.state_dir / "tokenizers")
    readers.follow([make_model(make_release(files.pair), control_characters="strip")])
    await wait_until_ready(readers)
    return readers


def pid_of(readers: Readers) -> int:
    return next(iter(readers._children)).process.pid


# Reading.
async def test_a_large_body_is_read_elsewhere(readers: Readers) -> None:
    body = bytearray(chat_body("hello " * 50_000, stream=True))

    reading = await read(readers, body)

    assert (reading.model, reading.stream, reading.messages, reading.body) == ("m", True, 1, body)
    assert reading.body is body
    assert len(reading.blocks) == 256
    assert readers.describe()["children"] == 1


async def test_a_rewritten_body_comes_back(readers: Readers) -> None:
    body = json.dumps({"model": "m", "input": "hello " * 50_000}).encode()

    reading = await read(readers, body, b"/v1/responses")

    assert json.loads(reading.body) == {"model": "m", "input": "hello " * 50_000, "store": False}


async def test_a_conversation_is_cut_elsewhere(readers: Readers) -> None:
    talk = [{"role": ("user", "assistant")[n % 2], "content": "word " * 2000} for n in range(41)]
    body = bytearray(json.dumps({"model": "m", "messages": talk}).encode())

    tokens, left = await cut(readers, body, excess_tokens=30_000)
    whole = await cut(readers, body, excess_tokens=10_000_000)

    kept = json.loads(left)["messages"]
    assert 30_000 <= tokens < 36_000
    assert (kept[0], kept[-1]) == (talk[0], talk[-1])
    assert len(kept) < len(talk)
    assert whole == (0, body)


async def test_settings_of_the_table_reach_the_readers(ready: Readers) -> None:
    stripped = await read(ready, chat_body("a\x00b"))
    ready.follow([make_model(control_characters="refuse")])
    refused = await read(ready, chat_body("a\x00b"))

    assert stripped.changed == ("control_characters",)
    assert isinstance(refused, InvalidRequest)


@pytest.mark.parametrize("body", [b"{", b'{"model":5}', b'{"messages":' + b"[" * 10_000])
async def test_a_body_of_no_use_is_refused(readers: Readers, body: bytes) -> None:
    refusal = await read(readers, body)

    assert isinstance(refusal, InvalidRequest)
    assert "model" not in refusal.message or refusal.details["param"] == "model"


async def test_several_bodies_wait_for_their_turn(readers: Readers) -> None:
    readings = await asyncio.gather(*(read(readers, chat_body(f"text {n}")) for n in range(20)))

    assert [reading.opening for reading in readings] == [f"text {n}" for n in range(20)]
    assert 1 <= readers.describe()["children"] <= 2


async def test_a_second_reader_starts_when_the_first_has_work(readers: Readers) -> None:
    await read(readers, chat_body("warm"))
    os.kill(pid_of(readers), signal.SIGSTOP)
    readers.read(CHAT, chat_body("stuck"), on_done=lambda outcome: None)

    assert (await read(readers, chat_body("free"))).opening == "free"


async def test_too_many_waiting_are_refused_at_once(config: Config) -> None:
    readers = Readers(config, queue_limit=2)
    for _ in range(2):
        readers.read(CHAT, b"{}", on_done=lambda outcome: None)

    with pytest.raises(Overloaded):
        readers.read(CHAT, b"{}", on_done=lambda outcome: None)
    assert readers.describe()["refused"] == 1
    readers.close()


async def test_nobody_is_told_of_a_cancelled_read(readers: Readers) -> None:
    told: list[Any] = []
    job = readers.read(CHAT, chat_body("gone"), on_done=told.append)
    job.cancel()

    assert (await read(readers, chat_body("there"))).opening == "there"
    assert told == []


async def test_a_reader_that_hangs_on_a_cancelled_read_is_ended_too(readers: Readers) -> None:
    await read(readers, chat_body("warm"))
    os.kill(pid_of(readers), signal.SIGSTOP)

    readers.read(CHAT, chat_body("gone"), on_done=lambda outcome: None, timeout_s=0.05).cancel()

    await wait_until(lambda: readers.describe()["restarts"] == 1)
    assert readers.describe()["timeouts"] == 0


# Counting.
async def test_fc39_a_count_is_exact_at_a_limit(ready: Readers, files: Files) -> None:
    around = len("Xuser\n") + len("X\n") + len("Xassistant\n")

    counts = [await count(ready, files.pair, chat_body("a" * (n - around))) for n in (2047, 2048, 2049)]

    assert counts == [2047, 2048, 2049]


async def test_guesses_are_made_with_the_tokenizers_own_weights(ready: Readers) -> None:
    assert ready.measures("m").weights[0] == pytest.approx(1.2, abs=0.1)
    assert ready.measures("other").weights[0] < 0.5
    reading = await read(ready, chat_body("some words of a question " * 1000))
    assert reading.prompt_tokens == pytest.approx(25_000, rel=0.1)


async def test_without_a_ready_tokenizer_nobody_counts(readers: Readers, files: Files) -> None:
    assert readers.count(None, CHAT, b"{}", on_done=lambda tokens: None) is None
    assert readers.count(files.pair, CHAT, b"{}", on_done=lambda tokens: None) is None
    assert readers.describe()["children"] == 0


async def test_what_cannot_be_counted_leaves_the_guess(ready: Readers, files: Files) -> None:
    assert await count(ready, files.pair, json.dumps({"messages": [5]}).encode()) is None


async def test_a_count_that_takes_too_long_leaves_the_guess_and_costs_no_reader(
    ready: Readers, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.reading.readers._COUNT_HANG_S", 1.0)
    body = json.dumps({"prompt": "a" * 100_000}).encode()
    loop = asyncio.get_running_loop()
    patience_ends_at_s = loop.time() + 1.1

    late = await count(ready, files.pair, body, path=b"/v1/completions", timeout_s=0.001)

    assert late is None
    await wait_until(lambda: loop.time() > patience_ends_at_s)
    assert await count(ready, files.pair, chat_body("a")) == 20
    assert (ready.describe()["timeouts"], ready.describe()["restarts"]) == (1, 0)


# Failures of readers.
async def test_a_reader_that_dies_is_replaced_and_loads_again(ready: Readers, files: Files) -> None:
    os.kill(pid_of(ready), signal.SIGKILL)
    await wait_until(lambda: ready.describe()["restarts"] == 1)

    await wait_until(lambda: ready._has_loaded(files.pair))

    assert await count(ready, files.pair, chat_body("a")) == 20


async def test_a_body_that_ends_its_reader_is_refused(readers: Readers) -> None:
    await read(readers, chat_body("warm"))
    os.kill(pid_of(readers), signal.SIGSTOP)
    done = asyncio.get_running_loop().create_future()
    readers.read(CHAT, chat_body("poison"), on_done=done.set_result)
    os.kill(pid_of(readers), signal.SIGKILL)

    refusal = await done

    assert isinstance(refusal, InvalidRequest)
    assert refusal.details["reason"] == "reader_died"
    assert (await read(readers, chat_body("next"))).opening == "next"


async def test_a_reader_that_hangs_is_ended(readers: Readers) -> None:
    await read(readers, chat_body("warm"))
    os.kill(pid_of(readers), signal.SIGSTOP)
    done = asyncio.get_running_loop().create_future()
    readers.read(CHAT, chat_body("stuck"), on_done=done.set_result, timeout_s=0.05)

    refusal = await done
    await wait_until(lambda: readers.describe()["restarts"] == 1)

    assert refusal.details["reason"] == "timeout"
    assert (await read(readers, chat_body("next"))).opening == "next"


async def test_a_read_that_waits_too_long_is_refused_and_costs_no_reader(readers: Readers) -> None:
    done = asyncio.get_running_loop().create_future()
    readers.read(CHAT, chat_body("late"), on_done=done.set_result, timeout_s=0.0)

    assert (await done).details["reason"] == "timeout"
    assert (await read(readers, chat_body("next"))).opening == "next"
    assert readers.describe()["restarts"] == 0


async def test_a_count_that_never_ends_costs_its_reader(
    ready: Readers, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.reading.readers._COUNT_HANG_S", 0.0)
    body = json.dumps({"prompt": "a" * 4_000_000}).encode()

    assert await count(ready, files.pair, body, path=b"/v1/completions", timeout_s=0.01) is None

    await wait_until(lambda: ready.describe()["restarts"] == 1)
    assert (await read(ready, chat_body("next"))).opening == "next"


async def test_a_gateway_that_ends_leaves_no_reader_that_was_just_starting(config: Config) -> None:
    readers = Readers(config)
    readers.read(CHAT, chat_body("late"), on_done=lambda outcome: None)
    starting = set(readers._starting)
    await asyncio.sleep(0)

    readers.close()
    outcomes = await asyncio.gather(*starting, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError]
    assert readers.describe()["children"] == 0


async def test_a_gateway_that_drops_a_reader_in_the_middle_of_its_answer_goes_on(config: Config) -> None:
    readers = Readers(config)
    await read(readers, chat_body("warm"))
    body = json.dumps({"model": "m", "input": "a" * 8_000_000}).encode()
    readers.read(b"/v1/responses", body, on_done=lambda outcome: None)
    child = next(iter(readers._children))
    try:
        await wait_until(lambda: len(child._part) > 500_000 or not child.busy)
    finally:
        # Also where that moment was missed: a loop does not close while its reader lives.
        readers.close()

    await asyncio.sleep(0.01)
    assert readers.describe()["children"] == 0


async def test_a_reader_ends_with_its_gateway(config: Config) -> None:
    readers = Readers(config)
    await read(readers, chat_body("warm"))
    pid = pid_of(readers)

    readers.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_no_reader_to_be_had_is_tried_again(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("pool.gateway.reading.child.subprocess.Popen", refuse)
    monkeypatch.setattr("pool.gateway.reading.readers._BACK_OFF_S", (0.0, 0.01))

    assert (await read(readers, chat_body("later"))).opening == "later"


# FC-38.
async def _read_watched(readers: Readers, body: bytes, path: bytes = CHAT) -> tuple[Any, float]:
    await read(readers, chat_body("warm"))
    with watch_loop() as watch:
        outcome = await read(readers, body, path)
    assert watch.turns > 10
    return outcome, watch.longest_s


async def test_fc38_a_body_of_27_mb_does_not_hold_the_loop(ready: Readers) -> None:
    body = json.dumps({"model": "m", "prompt": "hello\x00 world " * 1_600_000}).encode()
    assert len(body) > 27_000_000

    reading, longest_s = await _read_watched(ready, body, b"/v1/completions")

    assert isinstance(reading, Reading)
    assert len(reading.body) > 17_000_000
    assert longest_s < LONGEST_S


async def test_fc38_a_hundred_thousand_messages_do_not_hold_the_loop(readers: Readers) -> None:
    reading, longest_s = await _read_watched(readers, chat_body(*["hello"] * 100_000))

    assert reading.messages == 100_000
    assert longest_s < LONGEST_S


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, " " * 1_000_000, "a\u0301" * 200_000, "\U0001f600" * 100_000, "1" * 500_000],
    ids=["letters", "blanks", "accents", "emoji", "digits"],
)
async def test_fc38_a_text_that_is_hard_on_tokenizers_does_not_hold_the_loop(
    ready: Readers, files: Files, text: str
) -> None:
    body = json.dumps({"model": "m", "prompt": text}).encode()

    with watch_loop() as watch:
        await count(ready, files.pair, body, path=b"/v1/completions", timeout_s=0.25)

    assert watch.longest_s < LONGEST_S
    assert isinstance(await read(ready, body, b"/v1/completions"), Reading)
