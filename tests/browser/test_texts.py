"""Masked texts in a browser: the key that asks for them, and one request's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from pool.models import CapturedText, RequestRecord
from pool.services.audit import Actor
from pool.services.keys import KeyWish, create_key
from pool.telemetry.store import add_requests
from tests.browser.conftest import OpenTab, in_database

HOSTILE = "'\"><img src=x onerror=alert(1)>"
ID = "req-4f1d2a9c0b7e00000042"
LONG = "I would like to move the order to the new address, and have the bill sent to [e-mail]. " * 12


def seed_text() -> None:
    now = timezone.now()
    key, _ = create_key(KeyWish("support-desk", capture_ratio=0.05), actor=Actor("ada", "test"))
    add_requests(
        [RequestRecord(request_id=ID, at=now, model="qwen2.5-7b", status=200, outcome="ok", e2e_s=1.2)]
    )
    CapturedText.objects.create(
        request_id=ID, at=now, model="qwen2.5-7b", key=key.digest[:12], status=200, outcome="ok",
        input=[["system", "You are a helpful desk."], ["user", LONG], [HOSTILE, HOSTILE]],
        output="Of course. I call you under [number].\n\n" + "x" * 300, kept_until=now + timedelta(hours=24),
    )  # fmt: skip


@pytest.fixture
def _text(web: object) -> Any:
    in_database(seed_text)
    yield
    in_database(lambda: CapturedText.objects.all().delete())


@pytest.mark.usefixtures("_text")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_text_is_read_from_its_request_and_the_key_says_how_much(
    open_tab: OpenTab, width: int, scheme: Any
) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=width, scheme=scheme)
    tab.sign_in("ada")
    page = tab.page
    tab.open(f"/requests/{ID}/")
    page.click("text=Its text, masked")
    expect(page.locator("main")).to_contain_text(HOSTILE)
    expect(page.locator("main")).to_contain_text("stands in the audit")
    assert tab.overflow_px() <= 0
    tab.open("/keys/support-desk/")
    expect(page.locator("#id_capture_ratio")).to_have_value("5")
    assert tab.overflow_px() <= 0
    page.fill("#id_capture_ratio", "0")
    page.click("text=Save the key")
    expect(page.locator(".messages")).to_contain_text("is changed")
    assert tab.open(f"/requests/{ID}/text/") == 404
    assert [problem for problem in tab.problems if "404" not in problem] == []
