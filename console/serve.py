"""`python -m console.serve`: the web process. One process, one event loop, few threads for Django."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys

import uvicorn

from console.loop_lag import LAG
from console.patience import PatientHttp
from pool.env import ConfigError, env_int, env_str

GRACE_S = 4
"""Answers under way may finish; then SIGTERM is done, within five seconds in all."""
KEEP_ALIVE_S = 15
LARGEST_SOCKET_MESSAGE_BYTES = 65_536
BACKLOG = 512

logger = logging.getLogger("console.serve")


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    host = env_str("SLUICE_BIND", "127.0.0.1")
    port = env_int("SLUICE_WEB_PORT", 8000, minimum=1, maximum=65535)
    try:
        listener = open_listener(host, port)
    except OSError as exc:
        print(f"web cannot listen on {host}:{port}: {exc.strerror}. Set SLUICE_WEB_PORT.", file=sys.stderr)  # noqa: T201
        return 1
    raise_file_limit()
    import console.boot  # noqa: F401  # sets Django up, which the message above must not wait for
    from console.static_files import ensure_static_files

    if ensure_static_files():
        logger.info("static files collected")
    from console.asgi import application  # lists the static files once, when it is made

    make_server(application).run(sockets=[listener])
    return 0


def open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def raise_file_limit() -> None:
    """Each browser holds a socket; the usual soft limit of 1024 would be reached by idle ones."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Server(uvicorn.Server):
    """Also watches how late its event loop is."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.lag_watch = asyncio.create_task(LAG.watch())


def make_server(application: object) -> uvicorn.Server:
    return Server(
        uvicorn.Config(
            application,  # type: ignore[arg-type]
            lifespan="off",
            loop="uvloop",
            http=PatientHttp,
            ws="websockets-sansio",
            ws_max_size=LARGEST_SOCKET_MESSAGE_BYTES,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as exc:
        sys.exit(exc.message)
