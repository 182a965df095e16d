"""FC-38: nothing that a caller sends holds the gateway's loop, and streams flow on meanwhile.

Callers are threads and the engine is a process: only the gateway's own turns are on this loop.
"""

import asyncio
import contextlib
import gc
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from pool.domain.chat_template_file import bundle_templates
from pool.gateway.config import MIB
from pool.gateway.memory import map_large_blocks
from tests.fakes.tiny_model import make_tiny_model
from tests.pool.gateway.loop_watch import watch_loop
from tests.pool.gateway.reading.conftest import Files
from tests.pool.gateway.rig import Rig, chat_request, make_release, make_table
from tests.pool.gateway.tables import engine_process, wait_for_socket

LONGEST_S = 0.030
"""20 ms is reached on a quiet machine; beside other tests page faults and cold caches cost a few more."""
TRIES = 3
"""A neighbour of the machine slows single page faults down; what the gateway itself does comes again each time."""
COMPLETIONS = "/v1/completions"
MESSAGES = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    template = bundle_templates({"tokenizer_config.json": (folder / "tokenizer_config.json").read_bytes()})
    assert template is not None
    return Files((folder / "tokenizer.json").read_bytes(), template)


@pytest.fixture(autouse=True)
def prepared() -> Iterator[None]:
    """Memory as in the gateway's own process."""
    map_large_blocks()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def served(rig: Rig, files: Files) -> AsyncIterator[Rig]:
    """One engine in a process of its own, whose tokenizer the gateway's readers know."""
    files.write_to(rig.folder / "gateway" / "tokenizers")
    with engine_process(rig.folder, "r1", "gap_s=0.02", "chunks=60", "max_ctx=100000000") as (replica, _):
        await wait_for_socket(replica)
        tokenizer, template = files.pair
        release = make_release(1, replace(replica, max_model_len=None))
        release = replace(release, tokenizer=tokenizer, chat_template=template)
        await rig.serve(make_table(release), max_body_bytes=32 * MIB)
        assert (await rig.ask(max_tokens=1)).status == 200
        yield rig


def call(port: int, request: bytes) -> tuple[int, bytes]:
    """Status and all that came, over a connection of its own. Blocks."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        answer = b""
        while not _is_whole(answer):
            data = connection.recv(65_536)
            if not data:
                break
            answer += data
    return int(answer[9:12]), answer


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    name = b"content-length: "
    start = head.lower().find(name)
    if start < 0:
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(head[start + len(name) :].split(b"\r\n")[0])


async def call_watched(rig: Rig, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, float]:
    """Status, and the longest turn of the loop in thread CPU time, in the best of three tries."""
    request = chat_request(body, path=path)
    longest_s = []
    for _ in range(TRIES):
        with watch_loop() as watch:
            status, _ = await asyncio.to_thread(call, rig.gateway.port, request)
        assert watch.turns > 1
        longest_s.append(watch.longest_s)
        if watch.longest_s < LONGEST_S:
            break
    return status, min(longest_s)


async def test_a_body_of_27_mb_passes_without_holding_the_loop(served: Rig) -> None:
    body = json.dumps({"model": "m", "prompt": "hello world " * 2_300_000, "max_tokens": 1}).encode()
    assert len(body) > 27_000_000

    status, longest_s = await call_watched(served, body, COMPLETIONS)

    assert status == 200
    assert longest_s < LONGEST_S


async def test_a_body_of_27_mb_that_must_be_changed_passes_too(served: Rig) -> None:
    body = json.dumps({"model": "m", "prompt": "hello\x00 world " * 1_600_000, "stream": True}).encode()

    status, longest_s = await call_watched(served, body, COMPLETIONS)

    assert status == 200
    assert longest_s < LONGEST_S


async def test_over_the_limit_it_is_refused_before_it_is_read(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 27_000_000)

    started_s = time.monotonic()
    status, longest_s = await call_watched(rig, body, COMPLETIONS)

    assert status == 413
    assert time.monotonic() - started_s < 2.0 * TRIES
    assert longest_s < LONGEST_S
    assert not rig.engines["r1"].completions


@pytest.mark.parametrize(("messages", "status"), [(100_000, 400), (2_000, 200)])
async def test_messages_without_end_are_refused_without_holding_the_loop(
    served: Rig, messages: int, status: int
) -> None:
    body = json.dumps({"model": "m", "messages": [MESSAGES] * messages, "max_tokens": 1}).encode()

    told, longest_s = await call_watched(served, body)

    assert told == status
    assert longest_s < LONGEST_S


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000, " " * 1_000_000, "\n" * 60_000, "a\u0301" * 200_000, "\U0001f600" * 100_000, "1" * 500_000,
        "<|im_start|>" * 5_000, "a" * 60_000, " a" * 30_000, "\x00" * 10_000, "<" * 60_000, "[" * 60_000,
    ],
    ids=[
        "letters", "blanks", "lines", "accents", "emoji", "digits", "specials", "letters-here", "words-here",
        "zeros-here", "angles-here", "brackets-here",
    ],
)  # fmt: skip
async def test_a_text_that_is_hard_on_tokenizers_does_not_hold_the_loop(served: Rig, text: str) -> None:
    body = json.dumps({"model": "m", "prompt": text, "max_tokens": 1}).encode()

    status, longest_s = await call_watched(served, body, COMPLETIONS)

    assert status in (200, 400)
    assert longest_s < LONGEST_S


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'{"model":"m","messages":[{"role":"user","content":' + b'[{"a":' * 400 + b"1" + b"}]" * 400 + b"}]}",
        b'{"model":"m","messages":[{"role":"user","content":[' + b'"a",' * 15_000 + b'"a"]}]}',
        b'{"model":"m",' + b",".join(b'"k%d":1' % n for n in range(6_000)) + b',"messages":[]}',
        json.dumps(
            {
                "model": "m",
                "messages": [MESSAGES],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "s",
                        "schema": {"enum": ["x" * 20] * 2_500},
                    },
                },
            }
        ).encode(),
    ],
    ids=["deep", "less-deep", "mixed", "parts", "fields", "schema"],
)
async def test_a_shape_that_is_hard_on_parsers_does_not_hold_the_loop(served: Rig, body: bytes) -> None:
    _, longest_s = await call_watched(served, body)

    assert longest_s < LONGEST_S


async def test_streams_and_health_flow_on_beside_large_bodies(served: Rig) -> None:
    port = served.gateway.port
    prompt = {"model": "m", "prompt": "hello world " * 2_300_000, "max_tokens": 1}
    large = chat_request(json.dumps(prompt).encode(), path=COMPLETIONS)
    many = chat_request(json.dumps({"model": "m", "messages": [MESSAGES] * 100_000}).encode())
    health = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    big: list[asyncio.Task[tuple[int, bytes]]] = []

    def count_while_busy(request: bytes) -> int:
        """Answers that were complete before both of the large ones were."""
        count = 0
        while not all(task.done() for task in big):
            status, _ = call(port, request)
            assert status == 200
            count += 1
        return count

    with watch_loop() as watch:
        big += [asyncio.create_task(asyncio.to_thread(call, port, request)) for request in (large, many)]
        healthy = asyncio.create_task(asyncio.to_thread(count_while_busy, health))
        short = chat_request(stream=True, max_tokens=2)
        streams = [asyncio.create_task(asyncio.to_thread(count_while_busy, short)) for _ in range(4)]
        answers = [await task for task in big]
        counts = await asyncio.gather(healthy, *streams)

    assert [status for status, _ in answers] == [200, 400]
    assert min(counts) >= 3
    assert watch.longest_s < LONGEST_S
