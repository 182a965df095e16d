"""One run through all pages in each size and theme, and the few stories that only a browser can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pool.models import Key, Model, Node, Plan, Replica
from tests import factories
from tests.browser.conftest import OpenTab, Web, in_database

PAGES = {
    "overview": "/",
    "models": "/models/",
    "model": "/models/qwen2.5-7b/",
    "model-new": "/models/new/",
    "plan": "/models/qwen2.5-7b/plan/",
    "control": "/models/qwen2.5-7b/control/",
    "lanes": "/models/qwen2.5-7b/lanes/",
    "gateway": "/models/qwen2.5-7b/gateway/",
    "version-new": "/models/qwen2.5-7b/versions/new/",
    "release-new": "/models/qwen2.5-7b/releases/new/",
    "replicas": "/replicas/",
    "replica-ready": "/replicas/rk3m9d2q71/",
    "replica-failed": "/replicas/rb5y1h8z3e/",
    "requests": "/requests/",
    "request": "/requests/0f3a-000001c4/",
    "nodes": "/nodes/",
    "profiles": "/profiles/",
    "profile-new": "/profiles/new/",
    "keys": "/keys/",
    "key-new": "/keys/new/",
    "key": "/keys/help-desk/",
    "playground": "/playground/",
    "audit": "/audit/",
    "account": "/account/",
}
LIVE = '[data-live-state="live"]'
HOSTILE = "'\"><img src=x onerror=alert(1)></script><script>alert(2)</script>"


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go: set SLUICE_TEST_SHOTS to keep and look at them."""
    folder = Path(os.environ.get("SLUICE_TEST_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_every_page_is_clean_and_fits(open_tab: OpenTab, shots: Path) -> None:
    """No error on the console, which is where Chromium tells violations of the CSP; nothing wider than the window."""
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("ada")
    for name, path in PAGES.items():
        assert tab.open(path) == 200
        if tab.page.locator("[data-live-state]").count():
            expect(tab.page.locator(LIVE)).to_be_visible()
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")):
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.page.emulate_media(color_scheme=scheme)
            assert tab.overflow_px() <= 0, f"{name} at {width}"
            tab.page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
        tab.page.set_viewport_size({"width": 1280, "height": 900})

    assert tab.problems == []


def test_the_overview_moves_without_a_reload(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    expect(tab.page.locator(LIVE)).to_be_visible()
    row = tab.page.locator('tr[data-row="r7t2f6n0ab"]')
    expect(row.locator(".chip").first).to_have_text("warming")

    in_database(_move_replicas)

    expect(row.locator(".chip").first).to_have_text("ready")
    expect(row.locator(".chip").first).to_have_attribute("data-state", "ok")
    expect(tab.page.locator('tr[data-row="rnewcomer0"]')).to_contain_text("pending")
    expect(tab.page.locator("h1")).to_contain_text("4 of 5 replicas ready")
    assert tab.problems == []


def _move_replicas() -> None:
    Replica.objects.filter(pk="r7t2f6n0ab").update(phase="ready")
    factories.make_replica(Replica.objects.get(pk="rq0j6s4u9g").release, id="rnewcomer0", phase="pending")


def test_a_lost_feed_is_said_and_comes_back(open_tab: OpenTab, web: Web) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    expect(tab.page.locator(LIVE)).to_be_visible()

    web.stop()
    expect(tab.page.locator("[data-live-state]")).to_contain_text(
        "live feed lost, last update", timeout=15_000
    )
    web.start()

    expect(tab.page.locator(LIVE)).to_be_visible(timeout=20_000)


def test_a_plan_is_set_and_taken_back(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("otto")
    tab.open("/models/qwen2.5-7b/plan/")
    tab.page.fill("#id_weight_2", "100")
    expect(tab.page.locator("[data-sum]")).to_have_attribute("data-state", "bad")
    expect(tab.page.locator("[data-plan-send]")).to_be_disabled()
    tab.page.fill("#id_weight_1", "0")
    expect(tab.page.locator("#consequences")).to_contain_text("Release 1 gets no new request any more")
    tab.page.click("[data-plan-send]")
    expect(tab.page.locator(".messages")).to_contain_text("Plan 4 is in force")

    tab.page.click("[data-take-back]")
    expect(tab.page.locator("#dialog-take-back")).to_contain_text("is put back within a second")
    tab.page.click("#dialog-take-back button.danger")

    expect(tab.page.locator(".messages")).to_contain_text("plan 3 is back")
    newest = in_database(lambda: Plan.objects.filter(model__name="qwen2.5-7b").latest("number"))
    assert newest.weights == {"1": 75, "2": 25}
    assert tab.problems == []


def test_dangerous_clicks_tell_their_consequence_first(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("ada")
    tab.open("/models/qwen2.5-7b/")
    expect(tab.page.locator(LIVE)).to_be_visible()
    tab.page.locator("[data-scale]").first.click()
    tab.page.fill("#scale-replicas", "0")
    expect(tab.page.locator("[data-when=zero-risk]")).to_be_visible()
    tab.page.keyboard.press("Escape")

    tab.open("/nodes/")
    tab.page.locator('[data-node-wish="drain"][data-node="desk"]').click()
    expect(tab.page.locator("#dialog-node-drain")).to_contain_text("1 replica")
    tab.page.click("#dialog-node-drain button.danger")
    expect(tab.page.locator(".messages")).to_contain_text("desk becomes empty")

    tab.open("/keys/")
    tab.page.click('[data-revoke="help-desk"]')
    tab.page.click("#dialog-revoke button.danger")
    expect(tab.page.locator(".messages")).to_contain_text("help-desk is revoked")
    assert in_database(lambda: Node.objects.get(name="desk")).wish == "drain"
    assert in_database(lambda: Key.objects.get(name="help-desk")).revoked_at is not None
    assert tab.problems == []


def test_the_playground_streams_and_shows_its_figures(open_tab: OpenTab, shots: Path) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("otto")
    tab.open("/playground/?model=smollm2")
    tab.page.fill("#prompt", "What is the capital of France?")
    tab.page.keyboard.press("Enter")

    expect(tab.page.locator(".turn.assistant")).to_contain_text("The capital of France is Paris")
    expect(tab.page.locator("#ttft")).to_contain_text("s")
    expect(tab.page.locator("#tokens")).to_have_text("7")
    tab.page.screenshot(path=shots / "playground-answer.png")
    assert tab.problems == []


def test_the_keyboard_reaches_what_matters(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.sign_in("otto")
    tab.open("/audit/")

    tab.page.keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.id") == "f-subject"
    tab.open("/")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"


def test_the_chosen_theme_is_remembered(open_tab: OpenTab) -> None:
    tab = open_tab(scheme="light")
    tab.sign_in("vera")
    tab.page.click("[data-theme-toggle]")
    assert tab.page.evaluate("document.documentElement.dataset.theme") == "dark"

    tab.open("/nodes/")

    assert tab.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(12, 15, 19)"


def test_hostile_text_does_nothing_in_a_browser(open_tab: OpenTab) -> None:
    """FC-55: also where it comes live, after the page was rendered."""
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("ada")
    tab.open("/replicas/rk3m9d2q71/")
    expect(tab.page.locator(LIVE)).to_be_visible()
    in_database(_write_hostile_text)
    expect(tab.page.locator("#log")).to_contain_text("onerror=alert(1)")
    expect(tab.page.locator(".reason")).to_contain_text("onerror=alert(1)")

    for path in ("/", "/models/qwen2.5-7b/", "/replicas/", "/audit/"):
        tab.open(path)
        assert tab.page.locator('img[src="x"]').count() == 0

    assert tab.problems == []


def _write_hostile_text() -> None:
    Replica.objects.filter(pk="rk3m9d2q71").update(
        reason_text=HOSTILE, log_tail=f"INFO {HOSTILE}\n", placement_reason=HOSTILE, phase="failed"
    )
    Model.objects.update(description=HOSTILE, owner=HOSTILE)
