"""Masked texts on their way from Redis into the table, to who may see them, and out again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import orjson
import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from launcher.servers import RunningServer
from pool.models import AuditEntry, CapturedText, Key
from pool.services.audit import Actor
from pool.services.captures import drop_expired_texts
from pool.services.keys import KeyWish, change_key, create_key, revoke_key
from pool.telemetry.captures import store_texts
from tests.pool.gateway.test_delivery import valkey

__all__ = ["valkey"]
ACTOR = Actor("admin", "page")
DAY = timedelta(hours=24)
SignIn = Callable[[User], Client]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("routing_state")]


def make_key(name: str = "a-key", *, ratio: float = 1.0) -> Key:
    return create_key(KeyWish(name, capture_ratio=ratio), actor=ACTOR)[0]


def make_text(key: Key, request_id: str = "req-1", *, age: timedelta = timedelta(0), **fields: Any) -> None:
    now = timezone.now()
    values = {"input": [["user", "hello"]], "output": "there", "status": 200, "outcome": "ok"} | fields
    CapturedText.objects.create(
        request_id=request_id, at=now, model="m", key=key.digest[:12], kept_until=now + DAY - age, **values
    )


def entry(key: Key, request_id: str, **fields: Any) -> dict[str, bytes]:
    usual = {
        "request_id": request_id, "at": 1.7e9, "model": "m", "key": key.digest[:12], "status": 200,
        "outcome": "ok", "input": [["user", "hel\0lo"]], "output": "there",
    }  # fmt: skip
    return {"b": orjson.dumps(usual | fields)}


def test_only_texts_of_keys_that_still_want_it_are_stored(valkey: RunningServer) -> None:
    client = redis.Redis.from_url(valkey.url)
    willing, other = make_key(), make_key("other", ratio=0.0)
    for fields in (
        entry(willing, "req-1"), entry(other, "req-2"), {"b": b"broken"}, entry(willing, "req-1"),
        entry(willing, "req-3", input="no list"),
    ):  # fmt: skip
        client.xadd("sluice:i:captures", cast(Any, fields))

    taken = store_texts(client, "i", kept=DAY, now=timezone.now())

    (row,) = CapturedText.objects.all()
    assert (taken, client.xlen("sluice:i:captures")) == (5, 0)
    assert (row.request_id, row.input, row.output) == ("req-1", [["user", "hello"]], "there")
    assert row.kept_until > timezone.now() + timedelta(hours=23)
    client.close()


def test_texts_go_when_their_time_is_over() -> None:
    key = make_key()
    make_text(key, "old", age=DAY)
    make_text(key, "young")

    assert drop_expired_texts(timezone.now()) == 1
    assert [row.pk for row in CapturedText.objects.all()] == ["young"]


@pytest.mark.parametrize("end", ["changed", "revoked"])
def test_a_key_that_keeps_no_more_loses_what_was_kept(end: str) -> None:
    key, other = make_key(), make_key("other")
    make_text(key)
    make_text(other, "req-2")

    if end == "changed":
        change_key("a-key", {"capture_ratio": 0.0}, actor=ACTOR)
    else:
        revoke_key("a-key", actor=ACTOR)

    assert [row.pk for row in CapturedText.objects.all()] == ["req-2"]
    assert AuditEntry.objects.filter(action="text.forget", subject="key/a-key").exists()


def test_who_may_reads_it_and_that_stands_in_the_audit(admin: User, sign_in: SignIn) -> None:
    make_text(make_key(), input=[["user", "<script>alert(1)</script>"]])

    page = sign_in(admin).get("/requests/req-1/text/")
    answer = sign_in(admin).get("/api/v1/requests/req-1/text/")

    assert page.status_code == 200
    assert "&lt;script&gt;alert(1)" in page.content.decode()
    assert answer.json()["output"] == "there"
    assert AuditEntry.objects.filter(action="text.read", subject="request/req-1").count() == 2


def test_an_operator_may_not(operator: User, sign_in: SignIn) -> None:
    make_text(make_key())

    assert sign_in(operator).get("/requests/req-1/text/").status_code == 403
    assert sign_in(operator).get("/api/v1/requests/req-1/text/").status_code == 403
    assert not AuditEntry.objects.filter(action="text.read").exists()


@pytest.mark.parametrize("request_id", ["nobody", "old"])
def test_what_is_not_kept_is_not_found(admin: User, sign_in: SignIn, request_id: str) -> None:
    make_text(make_key(), "old", age=DAY)

    assert sign_in(admin).get(f"/requests/{request_id}/text/").status_code == 404
