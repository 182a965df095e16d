"""One request's page, its endpoint, and the page that finds it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from pool.models import RequestRecord
from pool.queries.request_detail import find_request, list_failures
from pool.telemetry.store import add_requests

SignIn = Callable[[User], Client]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("routing_state")]
HOSTILE = "'\"><img src=x onerror=alert(1)></script>"


def make_record(request_id: str = "req-1", **values: Any) -> RequestRecord:
    given = {
        "at": timezone.now() - timedelta(seconds=20),
        "model": "smollm2",
        "lane": "short",
        "release": 1,
        "replica": "rk3m9d2q71",
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "tries": [["rk3m9d2q71", 0.04, "ok"]],
        "waits": [["lane_limit", 0.03]],
        "queue_s": 0.04,
        "first_byte_s": 0.3,
        "decode_s": 1.0,
        "ttft_s": 0.34,
        "e2e_s": 1.35,
        "prompt_tokens": 400,
        "cached_tokens": 256,
        "output_tokens": 64,
    } | values
    record = RequestRecord(request_id=request_id, **given)
    add_requests([record])
    return record


def test_the_page_shows_where_the_time_went(viewer: User, sign_in: SignIn) -> None:
    make_record(engine_queue_s=0.02, engine_prefill_s=0.25, engine_decode_s=0.98)

    text = sign_in(viewer).get("/requests/req-1/").content.decode()

    for words in (
        "1.35 s",
        "340 ms",
        "Queue",
        "Prefill",
        "256 (64 %)",
        "64 tokens/s",
        "limit of requests at once",
    ):
        assert words in text
    assert "Not explained" in text


def test_what_is_not_known_is_shown_as_unknown_fc29(viewer: User, sign_in: SignIn) -> None:
    make_record(
        replica="", release=None, status=429, outcome="queue_full", stream=False, tries=[], waits=[], ttft_s=None,
        queue_s=None, first_byte_s=None, decode_s=None, e2e_s=0.0002, prompt_tokens=12, cached_tokens=None,
        output_tokens=None,
    )  # fmt: skip

    text = sign_in(viewer).get("/requests/req-1/").content.decode()

    assert "It never reached a replica" in text
    assert "No replica got it." in text
    assert "0 tokens/s" not in text


def test_a_request_is_found_by_its_id_and_by_the_callers(viewer: User, sign_in: SignIn) -> None:
    make_record(tag="trace-77")
    client = sign_in(viewer)

    assert client.get("/requests/?id=req-1")["Location"] == "/requests/req-1/"
    assert client.get("/requests/?id=trace-77")["Location"] == "/requests/req-1/"
    missed = client.get("/requests/?id=nowhere")
    assert (missed.status_code, "No request bears this id" in missed.content.decode()) == (404, True)
    assert client.get("/requests/nowhere/").status_code == 404


def test_what_failed_is_listed_newest_first_and_what_was_the_callers_is_not() -> None:
    now = timezone.now()
    make_record("early", outcome="upstream_failed", status=502, at=now - timedelta(minutes=9))
    make_record("late", outcome="interrupted", at=now - timedelta(minutes=1))
    make_record("gone", outcome="client_gone", status=499)
    make_record("fine")
    make_record("old", outcome="upstream_failed", status=502, at=now - timedelta(hours=2))

    assert [row.request_id for row in list_failures(now=now)] == ["late", "early"]


def test_hostile_text_is_shown_and_not_run_fc55(viewer: User, sign_in: SignIn) -> None:
    make_record(
        label=HOSTILE,
        tag=HOSTILE,
        finish_reason="'\"><b>",
        tries=[[HOSTILE, 0.1, HOSTILE]],
        waits=[[HOSTILE, 1]],
    )
    client = sign_in(viewer)

    for path in ("/requests/req-1/", "/requests/?id=" + HOSTILE):
        text = client.get(path).content.decode()
        assert "<img src=x" not in text
        assert "'\"><b>" not in text


def test_records_of_another_version_are_read_as_far_as_they_go() -> None:
    make_record(tries=[["r1"], "odd", None], waits=[{"reason": "x"}])

    found = find_request("req-1")

    assert found is not None
    assert (found.attempts, found.obstacles) == ((), ())


def test_the_endpoint_tells_the_same(viewer: User, sign_in: SignIn) -> None:
    at = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
    make_record(at=at)
    client = sign_in(viewer)

    told = client.get("/api/v1/requests/req-1/").json()

    assert (told["at"], told["e2e_s"], told["release"]) == ("2026-11-30T03:00:00Z", 1.35, 1)
    assert told["attempts"] == [{"replica": "rk3m9d2q71", "sent_s": 0.04, "result": "ok"}]
    assert [span["name"] for span in told["spans"]] == ["queue", "first_byte", "decode", "other"]
    assert client.get("/api/v1/requests/nowhere/").status_code == 404
    assert Client().get("/api/v1/requests/req-1/").status_code == 401
