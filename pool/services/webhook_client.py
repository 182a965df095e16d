"""One POST to a webhook: resolved once, connected to the address that was checked, no redirect followed, nothing of
the answer kept but its status (FC-50)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from pool.domain.outbound import Target, check_addresses, unsafe

LONGEST_URL: Final = 500
TIMEOUT_S: Final = 5.0
"""For each step of the call."""
LONGEST_S: Final = 15.0
"""For all of it: a receiver that sends a byte now and then does not hold up the others."""


class Undelivered(Exception):
    """`reason`: `connect`, `timeout`, `tls`, `protocol`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Refused(Exception):
    """The receiver answered with a status other than 2xx; a redirect is one."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


def post_signed(url: str, body: bytes, secret: str) -> None:
    """Raises UnsafeUrl, Undelivered or Refused. `x-sluice-signature`: HMAC-SHA256 of the body."""
    target = read_url(url)
    address = check_addresses(_resolve(target), settings.WEBHOOK_NETWORKS)
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "Host": _host_header(target),
        "Content-Type": "application/json",
        "User-Agent": "sluice",
        "x-sluice-signature": f"sha256={signature}",
        "Connection": "close",
    }
    connection = _CheckedConnection(target, address)
    watch = threading.Timer(LONGEST_S, connection.cut)
    watch.daemon = True
    watch.start()
    try:
        connection.request("POST", target.path, body=body, headers=headers)
        status = connection.getresponse().status
    except ssl.SSLError as error:
        raise Undelivered("tls") from error
    except TimeoutError as error:
        raise Undelivered("timeout") from error
    except OSError as error:
        raise Undelivered("connect") from error
    except http.client.HTTPException as error:
        raise Undelivered("protocol") from error
    finally:
        watch.cancel()
        connection.close()
    if not 200 <= status < 300:
        raise Refused(status)


def read_url(url: str) -> Target:
    """Raises UnsafeUrl. No user, no fragment, nothing but http and https."""
    if len(url) > LONGEST_URL or any(ord(sign) <= 32 or ord(sign) == 127 for sign in url) or "\\" in url:
        raise unsafe("The URL is too long or holds characters that no URL holds.", "malformed")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError):
        raise unsafe("The URL cannot be read.", "malformed") from None
    if parts.scheme not in ("http", "https"):
        raise unsafe("Use http or https.", "scheme")
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        raise unsafe("The URL names a host, no user and no fragment.", "malformed")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)


def _resolve(target: Target) -> list[str]:
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Undelivered("unresolved") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _host_header(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    usual = 443 if target.scheme == "https" else 80
    return host if target.port == usual else f"{host}:{target.port}"


class _CheckedConnection(http.client.HTTPConnection):
    """Connects to the checked address; the certificate must be the name's."""

    def __init__(self, target: Target, address: str) -> None:
        super().__init__(target.host, target.port, timeout=TIMEOUT_S)
        self._address, self._target = address, target

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self._target.port), timeout=TIMEOUT_S)
        if self._target.scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self._target.host)
        else:
            self.sock = plain

    def cut(self) -> None:
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
