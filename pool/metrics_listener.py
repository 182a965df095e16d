"""`GET /metrics` of a process that serves nothing else: one thread, one connection at a time, on loopback by default.

From the host itself, or with the API token; nothing can be changed through it.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from pool.domain.prometheus import CONTENT_TYPE, Page
from pool.env import env_secret, env_str
from pool.process_figures import add_own_process

logger = logging.getLogger(__name__)

Fill = Callable[[Page], None]
Headers = Mapping[str, str] | Message
RETRY_S = 30.0
"""A port that another process holds is tried again: it is no reason to leave the work undone."""
CLIENT_LIMIT_S = 2.0
"""For a scraper that does not speak, or does not read."""
LOCAL = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class MetricsAddress:
    """`port` 0: not served. Without `token` only this host is answered."""

    bind: str
    port: int
    token: str | None = None


def make_address(port: int) -> MetricsAddress:
    """`port` as this process' own variable says. Raises ConfigError naming the variable."""
    return MetricsAddress(
        bind=env_str("SLUICE_METRICS_BIND", "127.0.0.1"),
        port=port,
        token=env_secret("SLUICE_API_TOKEN", None),
    )


def may_read(peer: str, headers: Headers, token: str | None) -> bool:
    """A proxy on this host would make the whole world look local: what it passes on needs the token."""
    shown = str(headers.get("Authorization", "")).partition(" ")[2].strip()
    if token and secrets.compare_digest(shown.encode(), token.encode()):
        return True
    return peer in LOCAL and headers.get("X-Forwarded-For") is None


class MetricsListener(threading.Thread):
    """`fill` sets this process's own values on the page of each scrape; a failure of it is a scrape's failure (500)."""

    def __init__(self, address: MetricsAddress, fill: Fill) -> None:
        super().__init__(name="metrics", daemon=True)
        self.address = address
        self.fill = fill
        self.stopping = threading.Event()
        self.server: HTTPServer | None = None

    def run(self) -> None:
        while self.address.port and not self.stopping.is_set():
            try:
                self.server = _Server((self.address.bind, self.address.port), _make_handler(self))
            except OSError as exc:
                logger.warning(
                    "no metrics on %s:%d: %s", self.address.bind, self.address.port, exc.strerror or exc
                )
                self.stopping.wait(RETRY_S)
                continue
            with self.server:
                self.server.serve_forever(poll_interval=0.5)
            return

    def render(self) -> bytes:
        page = Page()
        add_own_process(page)
        self.fill(page)
        return page.render().encode()

    def stop(self) -> None:
        self.stopping.set()
        if self.server is not None:
            self.server.shutdown()


class _Server(HTTPServer):
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a scrape of %s broke off", client_address, exc_info=True)


def _make_handler(listener: MetricsListener) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_LIMIT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, b"Only /metrics is here.\n")
            elif not may_read(str(self.client_address[0]), self.headers, listener.address.token):
                self._answer(401, b"Metrics are for this host, or for who shows the API token.\n")
            else:
                self._answer_page()

        def _answer_page(self) -> None:
            try:
                content = listener.render()
            except Exception:
                # The edge of a scrape: the next one may find all it needs.
                logger.exception("metrics could not be gathered")
                self._answer(500, b"The metrics could not be gathered; the log says why.\n")
                return
            self._answer(200, content, kind=CONTENT_TYPE)

        def _answer(self, status: int, body: bytes, *, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not logged."""

    return Handler
