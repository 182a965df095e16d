"""The playground's socket, with the fake engine in the gateway's place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.conf import settings as django_settings
from django.contrib.auth.models import User

from console.live import consumers, playground
from console.live.chat_request import parse_chat
from console.live.playground import rate_of, read_delta, read_error
from pool.domain.signing import derive_playground_key
from pool.services.errors import Invalid
from tests.console.live.conftest import Open, Socket, make_session, read_close, read_kind
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.switches import Switches

CHAT = {
    "type": "start",
    "model": "model-0",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 8,
}
Start = Callable[..., Any]


@pytest.fixture
async def start_gateway(settings: Any) -> AsyncIterator[Start]:
    running: list[FakeEngine] = []

    async def start(**switches: Any) -> FakeEngine:
        engine = FakeEngine(Switches(**switches), key=derive_playground_key(django_settings.SECRET_KEY))
        settings.GATEWAY_URL = await engine.start()
        running.append(engine)
        return engine

    yield start
    for engine in running:
        await engine.stop()


async def open_playground(open_socket: Open, group: str = "operator") -> Socket:
    socket = open_socket("/live/playground/", await make_session(group))
    assert await socket.connect()
    return socket


@pytest.mark.usefixtures("seeded")
async def test_an_answer_streams_in_with_its_figures(open_socket: Open, start_gateway: Start) -> None:
    engine = await start_gateway()
    socket = await open_playground(open_socket)

    await socket.send(CHAT)
    route = await read_kind(socket, "route")
    text = await read_kind(socket, "text")
    done = await read_kind(socket, "done")

    assert route["status"] == 200
    assert text["text"]
    assert done["tokens"] == 7
    assert done["ttft_ms"] > 0
    assert json.loads(engine.completions[0].body)["stream_options"] == {"include_usage": True}
    await socket.disconnect()


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("ending", ["stop", "disconnect"])
async def test_leaving_aborts_the_call_within_a_second(
    open_socket: Open, start_gateway: Start, ending: str
) -> None:
    engine = await start_gateway(gap_s=0.1, chunks=400)
    socket = await open_playground(open_socket)
    await socket.send(CHAT | {"max_tokens": 500})
    await read_kind(socket, "text")

    if ending == "stop":
        await socket.send({"type": "stop"})
    else:
        await socket.disconnect()

    async with asyncio.timeout(1.0):
        while not engine.completions[0].aborted:  # noqa: ASYNC110 - the fake only notes it
            await asyncio.sleep(0.01)
    if ending == "stop":
        await socket.disconnect()


@pytest.mark.usefixtures("seeded")
async def test_a_gateway_that_is_away_is_told(open_socket: Open, settings: Any) -> None:
    settings.GATEWAY_URL = "http://127.0.0.1:9"
    socket = await open_playground(open_socket)

    await socket.send(CHAT)

    assert (await read_kind(socket, "failed"))["code"] == "gateway_unreachable"
    await socket.disconnect()


@pytest.mark.usefixtures("seeded")
async def test_a_refusal_is_shown_with_its_code(
    open_socket: Open, start_gateway: Start, settings: Any
) -> None:
    await start_gateway()
    settings.SECRET_KEY = "another-secret-so-that-the-key-is-wrong"
    session = await make_session("operator")
    socket = open_socket("/live/playground/", session)
    await socket.connect()

    await socket.send(CHAT)
    failed = await read_kind(socket, "failed")

    assert failed["status"] == 401
    assert derive_playground_key(settings.SECRET_KEY) not in json.dumps(failed)
    await socket.disconnect()


@pytest.mark.usefixtures("seeded")
async def test_a_viewer_may_not_chat(open_socket: Open) -> None:
    socket = await open_playground(open_socket, "viewer")

    assert await read_close(socket) == 4403


@pytest.mark.usefixtures("seeded")
async def test_a_wrong_request_is_told_and_the_socket_lives(open_socket: Open) -> None:
    socket = await open_playground(open_socket)

    wrong: list[dict[str, object]] = [{"model": ""}, {"messages": []}, {"release": "x"}, {"temperature": 9}]
    for broken in wrong:
        await socket.send(CHAT | broken)
        assert (await read_kind(socket, "failed"))["code"] == "invalid"
    await socket.disconnect()


@pytest.mark.usefixtures("seeded")
async def test_a_lost_right_ends_the_chat(
    open_socket: Open, start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-54"""
    assert consumers.RECHECK_S < 5
    monkeypatch.setattr(playground, "RECHECK_S", 0.2)
    await start_gateway(gap_s=0.1, chunks=400)
    socket = await open_playground(open_socket)
    await socket.send(CHAT | {"max_tokens": 500})
    await read_kind(socket, "text")

    await database_sync_to_async(lambda: User.objects.get().groups.clear())()

    assert await read_close(socket) == 4401


@pytest.mark.parametrize(
    "broken",
    [
        {"model": None},
        {"messages": "hello"},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": "x"}] * 101},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"release": 0},
        {"temperature": -1},
        {"temperature": "hot"},
    ],
)
def test_what_a_browser_sends_is_checked(broken: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        parse_chat(CHAT | broken)


def test_the_speed_counts_tokens_after_the_first() -> None:
    assert rate_of(11, 1.0, 2.0) == 10
    assert rate_of(1, 1.0, 2.0) is None
    assert rate_of(None, 1.0, 2.0) is None
    assert rate_of(5, None, 2.0) is None


def test_reasoning_is_text_too_and_strange_events_are_none() -> None:
    assert read_delta({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]}) == (
        "hm",
        "",
    )
    assert read_delta({"choices": []}) == ("", "")
    assert read_delta({"choices": [{"delta": {}, "finish_reason": "stop"}]}) == ("", "stop")


def test_an_error_that_is_no_json_is_shown_as_text() -> None:
    assert read_error(b"<h1>502</h1>") == {"code": "upstream_failed", "message": "<h1>502</h1>"}
    assert read_error(b'{"error": {"code": "queue_full", "message": "later"}}')["code"] == "queue_full"


@pytest.mark.parametrize("text", ["[" * 60_000, "{}" * 40_000, "[1]", None])
def test_a_frame_that_is_no_object_is_no_message(text: str | None) -> None:
    assert playground._read_message(text) is None


@pytest.mark.parametrize(
    "event", [{}, {"choices": []}, {"choices": [7]}, {"choices": [{"delta": "x"}]}, {"choices": {"a": 1}}]
)
def test_an_odd_chunk_has_no_text(event: dict[str, object]) -> None:
    assert playground.read_delta(event) == ("", "")


@pytest.mark.parametrize("body", [b"[]", b'"x"', b'{"error": 7}', b"[" * 100_000])
def test_an_odd_error_is_shown_as_text(body: bytes) -> None:
    assert playground.read_error(body)["code"] == "upstream_failed"
