"""The web server's application: sockets through Channels, HTTP through Django's WSGI side in few threads."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, cast
from urllib.parse import urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

from console.wsgi import application as wsgi_application  # isort: skip  # sets Django up before all that follows

from a2wsgi import WSGIMiddleware
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.urls import re_path

from console.bodies import App, Receive, Scope, Send, refuse, take_bodies
from console.errors import TABLE, close_code_for, find_failure, make_failure
from console.live.routing import websocket_urlpatterns
from pool.env import env_int

logger = logging.getLogger(__name__)

# Fewer than the database pool holds: sockets read through the same pool.
WEB_THREADS = env_int("SLUICE_WEB_THREADS", 6, minimum=1, maximum=64)
# Of 4 KiB: the largest static file fits, so that a slow reader holds no thread.
ANSWER_PIECES = 1024
SIGN_INS_AT_ONCE = 1
SIGN_INS_WAITING = 16


def clean_requests(app: App) -> App:
    """WSGI cannot tell `X-A` from `X_A`: the second, which nobody needs, must not pass for the first."""

    async def cleaned(scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [(name, value) for name, value in scope["headers"] if b"_" not in name]
        await app(scope, receive, send)

    return cleaned


def close_on_failure(app: App) -> App:
    """A socket whose consumer raises is closed with the code that `console.errors` states for it."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            if find_failure(error) is None:
                logger.exception("unexpected failure of a socket", extra={"path": scope.get("path")})
            await send({"type": "websocket.close", "code": close_code_for(error)})

    return guarded


def same_origin_only(app: App) -> App:
    """Cookies are sent from every port of a host, so another server there must not open sockets (FC-53)."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin, host = (
            headers.get(b"origin", b"").decode("latin-1"),
            headers.get(b"host", b"").decode("latin-1"),
        )
        if origin in settings.CSRF_TRUSTED_ORIGINS or urlsplit(origin).netloc.lower() == host.lower():
            await app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": TABLE["forbidden"].close_code})

    return checked


def few_sign_ins(app: App) -> App:
    """Checking a password takes half a second of a core on purpose: a flood of them must not take all threads."""
    turn, waiting = asyncio.Semaphore(SIGN_INS_AT_ONCE), 0

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal waiting
        if scope["method"] != "POST" or scope["path"] != settings.LOGIN_URL:
            await app(scope, receive, send)
        elif waiting >= SIGN_INS_WAITING:
            await refuse(send, make_failure("too_many_requests", "Too many sign-ins at once."))
        else:
            waiting += 1
            try:
                async with turn:
                    await app(scope, receive, send)
            finally:
                waiting -= 1

    return limited


async def no_such_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.close", "code": TABLE["not_found"].close_code})


_sockets = URLRouter([*websocket_urlpatterns, re_path("", cast(Any, no_such_socket))])
_pages = cast(
    App, WSGIMiddleware(cast(Any, wsgi_application), workers=WEB_THREADS, send_queue_size=ANSWER_PIECES)
)
application = ProtocolTypeRouter(
    {
        "http": clean_requests(take_bodies(few_sign_ins(_pages))),
        "websocket": close_on_failure(
            AllowedHostsOriginValidator(same_origin_only(AuthMiddlewareStack(_sockets)))
        ),
    }
)
