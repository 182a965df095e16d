"""The lanes editor and traffic control in a browser: lanes come and go, consequences are told, figures move."""

from __future__ import annotations

import json
from datetime import timedelta

import redis
from django.conf import settings
from django.utils import timezone

from pool.models import Lane, RoutingState
from tests.browser.conftest import OpenTab, in_database
from tests.browser.seed_gateways import gateway_state

LANES = "/models/qwen2.5-7b/lanes/"
LIVE = '[data-live-state="live"]'


def test_a_lane_is_moved_added_and_taken_away(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("otto")
    tab.open(LANES)
    page = tab.page
    expect(page.locator(".ruler-part")).to_have_text(["short0 – 511", "mid512 – 2,047", "long2,048 +"])

    page.fill("#id_lane-0-max_prompt_tokens", "1024")
    expect(page.locator("[data-lane-range]").first).to_have_text("0 – 1,023")
    expect(page.locator("#consequences")).to_contain_text(
        "Prompts of 512 to 1,023 tokens move from mid to short."
    )
    page.locator("[data-lane-remove]").nth(1).click()
    expect(page.locator("#consequences")).to_contain_text("mid goes.")
    page.click("[data-lane-add]")
    expect(page.locator("#consequences")).to_contain_text("Not yet sound")
    page.fill("#id_lane-3-name", "huge")
    page.fill("#id_lane-3-max_prompt_tokens", "16384")
    expect(page.locator("#consequences")).to_contain_text("huge is new")
    page.click("text=Save the lanes")

    expect(page.locator(".messages")).to_contain_text("gateways follow within a second")
    assert in_database(_list_lanes) == [("short", 1024), ("huge", 16384), ("long", None)]
    assert tab.problems == []


def _list_lanes() -> list[tuple[str, int | None]]:
    rows = Lane.objects.filter(model__name="qwen2.5-7b").order_by("position")
    return list(rows.values_list("name", "max_prompt_tokens"))


def test_a_refused_lane_is_shown_in_its_fold(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=390, scheme="dark")
    tab.sign_in("otto")
    tab.open(LANES)
    tab.page.locator("summary", has_text="Queue and limits").first.click()
    tab.page.fill("#id_lane-0-queue_timeout_s", "0.001")
    tab.page.evaluate("document.querySelector('[data-lanes-form]').noValidate = true")
    tab.page.click("text=Save the lanes")

    expect(tab.page.locator("[role=alert]")).to_contain_text("Correct the marked fields.")
    expect(tab.page.locator("#id_lane-0-queue_timeout_s_problem")).to_be_visible()
    assert tab.overflow_px() <= 0
    assert [problem for problem in tab.problems if "422" not in problem] == []


def test_watermarks_follow_what_is_typed(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("otto")
    tab.open("/models/qwen2.5-7b/gateway/")
    tab.page.fill("#id_watermark_warn_ratio", "50")

    expect(tab.page.locator("#consequences")).to_contain_text("Warn: 70 % → 50 %.")
    width = tab.page.evaluate("document.querySelector('.scale-bar [data-mark-part=ok]').style.flexGrow")
    assert width == "50"
    assert tab.problems == []


def test_traffic_control_moves_without_a_reload(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open("/models/qwen2.5-7b/control/")
    expect(tab.page.locator(LIVE)).to_be_visible()
    breaker = tab.page.locator('tr[data-row="rx8w4c5v2p"] [data-cell=breaker]')
    expect(breaker).to_have_text("on trial")

    in_database(_close_breaker)

    expect(breaker).to_have_text("in use")
    expect(breaker).to_have_attribute("data-state", "ok")
    expect(tab.page.locator('tr[data-row="1-mid"] [data-cell=queued]')).to_have_text("12")
    assert tab.problems == []


def _close_breaker() -> None:
    state = gateway_state((timezone.now() + timedelta(minutes=5)).isoformat())
    replicas = state["models"]["qwen2.5-7b"]["releases"]["1"]["replicas"]
    replicas["rx8w4c5v2p"]["breaker"] = replicas["rk3m9d2q71"]["breaker"]
    key = f"sluice:{RoutingState.objects.get(pk=1).installation}:gateway-state"
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        for identity in ("gw-desk-8080", "gw-edge-8080"):
            client.hset(key, identity, json.dumps(state))


def test_a_shadow_is_foretold_and_set_by_keyboard(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=390, scheme="dark")
    tab.sign_in("otto")
    tab.open("/models/qwen2.5-7b/plan/")
    page = tab.page
    page.focus("#id_shadow_release")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("12.5")

    expect(page.locator("#consequences")).to_contain_text("Release 1 also gets a copy of 12.5 %")
    expect(page.locator("#consequences")).to_contain_text("As things are now: up to 78 requests a minute.")
    expect(page.locator(".shadow-fields")).to_contain_text("Cost so far: 36,800 tokens in 122 requests")
    page.keyboard.press("Tab")
    page.keyboard.type("watch it")
    page.keyboard.press("Enter")

    expect(page.locator(".messages")).to_contain_text("Plan 4 is in force.")
    expect(page.locator(".plan-card")).to_contain_text("shadow: release 1 at 12.5 %")
    assert tab.overflow_px() <= 0
    assert tab.problems == []
