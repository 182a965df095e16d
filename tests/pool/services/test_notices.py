"""Notices: queued with the change, signed, tried again, and never sent to where they must not go (FC-50)."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_network
from typing import Any

import pytest

from pool.domain.outbound import UnsafeUrl, check_addresses
from pool.models import Alert, Notice, Webhook
from pool.services import webhooks
from pool.services.audit import Actor
from pool.services.errors import Conflict
from pool.services.notices import WAITS, describe, queue_notices, secret_of, send_due
from pool.services.webhook_client import Refused, Undelivered, post_signed, read_url
from pool.services.webhooks import WebhookWish
from tests.factories import T0

ACTOR = Actor("ada", "test")
LOOPBACK = [ip_network("127.0.0.0/8")]


class Receiver(BaseHTTPRequestHandler):
    """Keeps what it got; answers with the status that the server was told, and a body that nobody may repeat."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        if self.server.status == 302:  # type: ignore[attr-defined]
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
        self.end_headers()
        self.wfile.write(b"TOP SECRET OF THE INSIDE")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Receiver)
    server.seen, server.status = [], 200
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def url_of(server: Any, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{server.server_port}/hook?team=1"


def make_alert(**values: Any) -> Alert:
    fields: dict[str, Any] = {
        "source": "slo", "rule": "ttft_p99", "subject": "smollm2/short/*/*", "level": "orange", "peak": "orange",
        "opened_at": T0, "level_since": T0, "seen_at": T0, "evidence": {"value": 2.7},
    }  # fmt: skip
    return Alert.objects.create(**(fields | values))


def make_webhook(url: str = "https://pager.example.org/", **values: Any) -> Webhook:
    return Webhook.objects.create(name="pager", url=url, created_at=T0, **values)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1/", "http://localhost/", "http://2130706433/",
        "http://0/", "http://0x7f.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/", "http://10.0.0.1/", "http://192.168.1.1/", "http://[fe80::1]/", "http://[fd00::1]/",
        "http://224.0.0.1/", "http://0.0.0.0/",
    ],
)  # fmt: skip
def test_fc50_addresses_of_the_inside_are_refused(url: str, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = []

    with pytest.raises((UnsafeUrl, Undelivered)):
        post_signed(url, b"{}", "secret")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://a/", "http://", "http://a b/", "http://u:p@a/", "http://a\\@b/", "http://a:x/",
            "http://a/#part", "http://" + "a" * 500, "http://a/\r\nHost: b"],
)  # fmt: skip
def test_fc50_only_plain_urls_are_read(url: str) -> None:
    with pytest.raises(UnsafeUrl):
        read_url(url)


def test_fc50_a_name_with_one_address_inside_is_refused() -> None:
    with pytest.raises(UnsafeUrl):
        check_addresses(["93.184.216.34", "127.0.0.1"], [])
    with pytest.raises(UnsafeUrl):
        check_addresses([], [])
    assert check_addresses(["93.184.216.34", "127.0.0.1"], LOOPBACK) == "93.184.216.34"


def test_fc50_a_name_that_flips_is_resolved_once(
    receiver: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEBHOOK_NETWORKS = LOOPBACK
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        return [(2, 1, 6, "", (address, port)) for address in next(answers)]

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *args, **more: (
        resolve(host, port) if host == "flips.example" else [(2, 1, 6, "", (host, port))]
    ))  # fmt: skip

    post_signed(url_of(receiver, "flips.example"), b"{}", "secret")

    assert receiver.seen[0][1]["Host"] == f"flips.example:{receiver.server_port}"


def test_fc50_a_redirect_is_not_followed_and_no_answer_is_kept(
    receiver: Any, settings: Any, db: None
) -> None:
    settings.WEBHOOK_NETWORKS = LOOPBACK
    receiver.status = 302
    with pytest.raises(Refused) as refusal:
        post_signed(url_of(receiver), b"{}", "secret")
    assert str(refusal.value) == "302"

    make_webhook(url_of(receiver))
    queue_notices(make_alert(), "raised", now=T0)
    send_due(T0)

    notice = Notice.objects.get()
    assert notice.problem == "status_302"
    assert "SECRET" not in json.dumps(notice.body) + notice.problem


def test_a_notice_is_signed_and_says_what_happened(receiver: Any, settings: Any, db: None) -> None:
    settings.WEBHOOK_NETWORKS = LOOPBACK
    webhook, alert = make_webhook(url_of(receiver)), make_alert()
    queue_notices(alert, "raised", now=T0)

    assert send_due(T0) == {"sent": 1, "failed": 0}

    path, headers, body = receiver.seen[0]
    signature = hmac.new(secret_of(webhook).encode(), body, hashlib.sha256).hexdigest()
    assert path == "/hook?team=1"
    assert headers["x-sluice-signature"] == f"sha256={signature}"
    assert json.loads(body) == describe(alert, "raised", now=T0)
    assert send_due(T0 + timedelta(days=1)) == {}


def test_what_does_not_arrive_is_tried_again_and_given_up(db: None) -> None:
    make_webhook()
    queue_notices(make_alert(), "raised", now=T0)
    calls: list[str] = []

    def refuse(url: str, body: bytes, secret: str) -> None:
        calls.append(url)
        raise Undelivered("timeout")

    now = T0
    for wait in WAITS:
        send_due(now, post=refuse)
        assert send_due(now + wait / 2, post=refuse) == {}
        now += wait

    assert len(calls) == len(WAITS)
    notice = Notice.objects.get()
    assert (notice.due_at, notice.problem, notice.sent_at) == (None, "timeout", None)


@pytest.mark.parametrize(("least", "told"), [("plan", 1), ("orange", 1), ("red", 0)])
def test_only_who_wants_the_level_is_told(least: str, told: int, db: None) -> None:
    make_webhook(least_level=least)

    queue_notices(make_alert(), "raised", now=T0)

    assert Notice.objects.count() == told


def test_a_webhook_that_is_off_is_told_nothing(db: None) -> None:
    webhook = make_webhook()
    queue_notices(make_alert(), "raised", now=T0)
    webhooks.switch_webhook("pager", enabled=False, actor=ACTOR)
    queue_notices(make_alert(subject="other"), "raised", now=T0)

    assert send_due(T0, post=lambda *_: None) == {}
    assert webhook.notices.count() == 1


def test_a_name_is_taken_once(db: None) -> None:
    wish = WebhookWish("pager", "https://pager.example.org/")
    webhooks.create_webhook(wish, actor=ACTOR, now=T0)

    with pytest.raises(Conflict):
        webhooks.create_webhook(wish, actor=ACTOR, now=T0)


def test_one_of_the_same_name_made_anew_has_another_secret(db: None) -> None:
    wish = WebhookWish("pager", "https://pager.example.org/")
    _, first = webhooks.create_webhook(wish, actor=ACTOR, now=T0)
    webhooks.remove_webhook("pager", actor=ACTOR)

    _, second = webhooks.create_webhook(wish, actor=ACTOR, now=T0 + timedelta(seconds=1))

    assert first != second
