"""SLOs and alerts in a browser: what is shown, what is taken back by a click, and by hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import Alert, Model, Restriction, Slo, SloSpan
from pool.reconcilers.slo import SloPass
from pool.services.audit import Actor
from pool.services.slos import SloWish, create_slo, propose_slo
from pool.telemetry.store import add_cells
from tests.browser.conftest import OpenTab, in_database

MODEL = "qwen2.5-7b"
HOSTILE = "'\"><img src=x onerror=alert(1)>"
ACTOR = Actor("otto", "test")
STEP = timedelta(seconds=10)


def seed_alerts() -> None:
    """A lane that breaks its promise, one without traffic, a proposal, a day of budget, and a hostile label."""
    clear_alerts()
    now = timezone.now()
    quick: dict[str, Any] = {"enter_hold_s": 10, "min_samples": 50}
    slow = create_slo(MODEL, SloWish(lane="short", settings=quick), actor=ACTOR, now=now)
    create_slo(MODEL, SloWish(lane="long", label=HOSTILE), actor=ACTOR, now=now)
    _spend_budget(slow, now)
    work = SloPass()
    for number in range(6):
        at = now - (6 - number) * STEP
        _send(at, 2.7 if number % 2 else 2.9)
        work(at + STEP)
    Slo.objects.filter(phase="proposed").delete()
    propose_slo(MODEL, "mid", _window(), now=now)


def clear_alerts() -> None:
    for table in (Restriction, Alert, Slo):
        table.objects.all().delete()


def _send(at: datetime, ttft_s: float) -> None:
    cell = Cell({"requests": 120}, {}, {"ok": 120}, {"ttft": Histogram.of([0.2] * 100 + [ttft_s] * 20)})
    add_cells({(SeriesKey(MODEL, 1, "r1", "short", "standard"), at): cell})


def _spend_budget(slo: Slo, now: datetime) -> None:
    start = datetime.fromtimestamp(now.timestamp() // 300 * 300, tz=now.tzinfo)
    SloSpan.objects.bulk_create(
        SloSpan(slo=slo, at=start - timedelta(minutes=5 * number), requests=600, streams=600,
                ttft_p99=(number * 7) % 9 if number % 40 > 8 else 4, errors=number % 2)
        for number in range(3, 280) if not 90 < number < 110
    )  # fmt: skip


def _window() -> Any:
    from pool.domain.slo import Window

    return Window(1204, {}, Histogram.of([0.4] * 1150 + [1.1] * 54))


@pytest.fixture
def _alerts(web: object) -> Any:
    in_database(seed_alerts)
    yield
    in_database(clear_alerts)


@pytest.mark.usefixtures("_alerts")
def test_an_alert_is_read_acknowledged_and_its_action_taken_back(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("otto")
    tab.open("/alerts/")
    page = tab.page
    expect(page.locator(".alert-table").first).to_contain_text("P99 of the first token is over its levels")
    page.click("text=P99 of the first token is over its levels")
    expect(page.locator(".tiles")).to_contain_text("2.8")
    expect(page.locator("main")).to_contain_text("Acted: tier batch is refused")
    page.click("text=I look at it")
    expect(page.locator(".tiles")).to_contain_text("otto")
    page.locator("[data-take-back]").first.click()
    page.click("#dialog-back .btn.primary")

    expect(page.locator(".messages")).to_contain_text("gateways follow")
    ended = in_database(_list_ended)
    assert ended == ["taken_back"]
    assert tab.problems == []


def _list_ended() -> list[str]:
    return list(Restriction.objects.exclude(ended_at=None).values_list("end_reason", flat=True))


@pytest.mark.usefixtures("_alerts")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_slos_show_budget_proposal_and_what_is_not_judged(open_tab: OpenTab, width: int, scheme: Any) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=width, scheme=scheme)
    tab.sign_in("otto")
    tab.open("/slos/")
    page = tab.page
    expect(page.locator(".proposal")).to_contain_text("1,204 streams")
    expect(page.locator(".slo-table")).to_contain_text("orange")
    expect(page.locator(".slo-table")).to_contain_text(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("text=Accept")

    expect(page.locator(".messages")).to_contain_text("in force")
    assert (
        in_database(lambda: Slo.objects.filter(model=Model.objects.get(name=MODEL), phase="active").count())
        == 3
    )
    assert tab.problems == []


@pytest.mark.usefixtures("_alerts")
def test_a_model_is_held_back_by_hand(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=390)
    tab.sign_in("otto")
    tab.open(f"/models/{MODEL}/control/")
    page = tab.page
    expect(page.locator("#held-back")).to_contain_text("tier batch is refused")
    page.select_option("#r-kind", "no_long")
    page.click("#held-back .restrict .btn")

    expect(page.locator("#held-back")).to_contain_text("long requests are refused")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.problems == []
