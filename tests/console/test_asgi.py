from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pool.services.errors import NotFound


@pytest.fixture
def asgi() -> Any:
    """Imported late: Django's handler wants the folder of static files, which a fixture makes."""
    import console.asgi

    return console.asgi


async def ask(app: Any, scope: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(("error", "code"), [(NotFound("gone"), 4404), (RuntimeError("bug"), 4500)])
async def test_a_socket_whose_consumer_raises_is_closed_with_the_failures_code(
    asgi: Any, error: Exception, code: int
) -> None:
    async def app(*_: Any) -> None:
        raise error

    sent = await ask(asgi.close_on_failure(app), {"path": "/live/x/"})

    assert sent == [{"type": "websocket.close", "code": code}]


async def test_a_socket_that_nobody_serves_is_closed(asgi: Any) -> None:
    assert await ask(asgi.no_such_socket, {}) == [{"type": "websocket.close", "code": 4404}]


async def test_headers_with_underscores_do_not_pass_for_others(asgi: Any) -> None:
    seen: list[Any] = []

    async def app(scope: dict[str, Any], *_: Any) -> None:
        seen.extend(scope["headers"])

    await ask(asgi.clean_requests(app), {"headers": [(b"x-a", b"1"), (b"x_a", b"2")]})

    assert seen == [(b"x-a", b"1")]


async def test_a_flood_of_sign_ins_is_checked_one_by_one_and_disturbs_nobody(asgi: Any) -> None:
    running: list[str] = []
    at_once = 0
    go_on = asyncio.Event()

    async def app(scope: dict[str, Any], _receive: Any, send: Any) -> None:
        nonlocal at_once
        running.append(scope["path"])
        at_once = max(at_once, running.count("/sign-in/"))
        if scope["method"] == "POST":
            await go_on.wait()
        running.remove(scope["path"])
        await send({"type": "http.response.start", "status": 200})

    limited = asgi.few_sign_ins(app)
    flood = [
        asyncio.create_task(ask(limited, {"method": "POST", "path": "/sign-in/"}))
        for _ in range(asgi.SIGN_INS_WAITING + 5)
    ]
    await asyncio.sleep(0)
    others = [await ask(limited, {"method": "GET", "path": path}) for path in ("/sign-in/", "/")]
    go_on.set()
    statuses = [(await one)[0]["status"] for one in flood]

    assert [sent[0]["status"] for sent in others] == [200, 200]
    assert (statuses.count(200), statuses.count(429)) == (asgi.SIGN_INS_WAITING, 5)
    assert at_once <= 2


@pytest.mark.parametrize(
    ("origin", "passes"),
    [
        ("http://localhost:8000", True),
        ("https://proxy.example", True),
        ("http://localhost:3000", False),
        ("http://localhost", False),
        ("null", False),
        ("", False),
    ],
)
async def test_fc53_another_server_of_the_same_host_opens_no_socket(
    asgi: Any, settings: Any, origin: str, passes: bool
) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://proxy.example"]

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    headers = [(b"host", b"localhost:8000"), (b"origin", origin.encode())]
    sent = await ask(asgi.same_origin_only(app), {"headers": headers})

    assert [message["type"] for message in sent] == ["websocket.accept" if passes else "websocket.close"]
