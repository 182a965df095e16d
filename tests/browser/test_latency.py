"""The latency page as people see it: pictures of the past and of now, what an area holds, and hostile names."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from django.utils import timezone

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.telemetry.store import add_cells
from tests.browser.conftest import OpenTab, Tab, Web, in_database
from tests.browser.seed_latency import HOSTILE, MODEL, seed_hostile, seed_latency

PAGE = f"/models/{MODEL}/latency/"
HOUR = f"{PAGE}?range=1h"


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SLUICE_TEST_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def measured(pool: None) -> None:
    seed_latency(now=timezone.now())


def wait_for_picture(tab: Tab) -> None:
    from playwright.sync_api import expect

    expect(tab.page.locator(".plot .main-svg").first).to_be_visible()
    expect(tab.page.locator("[data-message]")).to_be_hidden()


@pytest.mark.usefixtures("measured")
def test_all_pictures_are_clean_and_fit(open_tab: OpenTab, shots: Path) -> None:
    """No word of the content security policy on the console, nothing wider than the window."""
    tab = open_tab()
    tab.sign_in("vera")
    for name, query in {
        "live": "",
        "hour": "?range=1h&colouring=share",
        "difference": "?range=1h&view=difference&base=1&against=2",
        "regions": "?range=1h&view=regions",
    }.items():
        assert tab.open(PAGE + query) == 200
        wait_for_picture(tab)
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")):
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.page.emulate_media(color_scheme=scheme)
            assert tab.overflow_px() <= 0, f"{name} at {width}"
            tab.page.screenshot(path=shots / f"latency-{name}-{width}-{scheme}.png", full_page=True)
        tab.page.set_viewport_size({"width": 1280, "height": 900})

    assert tab.problems == []


@pytest.mark.usefixtures("measured")
def test_the_live_picture_moves_and_says_when_it_does_not(open_tab: OpenTab, web: Web) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open(f"{PAGE}?lane=newcomers")
    expect(tab.page.locator('[data-live-state="live"]')).to_be_visible()
    expect(tab.page.locator("[data-message]")).to_contain_text("No request ended")
    expect(tab.page.locator("[data-figure=p99]")).to_have_text("—")

    in_database(_add_newcomers)
    web.stop()
    expect(tab.page.locator('[data-live-state="lost"]')).to_contain_text(
        "live feed lost since", timeout=15_000
    )
    web.start()

    expect(tab.page.locator("[data-figure=samples]")).to_have_text("40", timeout=20_000)
    expect(tab.page.locator("[data-figure=p50]")).to_have_text("252 ms")
    expect(tab.page.locator("[data-note=p99]")).to_have_text("few samples")


def _add_newcomers() -> None:
    key, at = SeriesKey(MODEL, release=1, lane="newcomers"), timezone.now() + timedelta(seconds=5)
    cell = Cell(counts={"requests": 40}, stages={"ttft": Histogram.of([0.25] * 40)})
    add_cells({(key, at): cell})


@pytest.mark.usefixtures("measured")
def test_an_area_tells_its_requests_and_what_is_unusual_about_them(open_tab: OpenTab, shots: Path) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open(HOUR)
    wait_for_picture(tab)
    box = tab.page.locator(".plot").bounding_box()
    assert box is not None

    tab.page.mouse.move(box["x"] + 70, box["y"] + 12)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] - 80, box["y"] + box["height"] * 0.42, steps=4)
    expect(tab.page.locator(".plot-tip")).to_be_visible()
    tab.page.mouse.up()

    side = tab.page.locator("[data-side]")
    expect(side.locator(".brushed a").first).to_contain_text("req-")
    expect(side.locator(".lifts")).to_contain_text("rb5y1h8z3e")
    expect(side.locator(".lifts")).to_contain_text("as frequent")
    tab.page.screenshot(path=shots / "latency-area-1280-light.png", full_page=True)
    tab.page.set_viewport_size({"width": 390, "height": 900})
    assert tab.overflow_px() <= 0
    tab.page.locator("[data-side-close]").click()
    expect(side).to_be_hidden()
    assert tab.problems == []


@pytest.mark.usefixtures("measured")
def test_the_picture_is_read_by_keyboard(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open(HOUR)
    wait_for_picture(tab)

    tab.page.locator(".plot").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "Shift+ArrowLeft", "Shift+ArrowDown"):
        tab.page.keyboard.press(key)
    expect(tab.page.locator(".plot-tip")).to_contain_text("UTC")
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("[data-side]")).to_be_visible()
    expect(tab.page.locator("[data-says]")).to_contain_text("requests:")
    tab.page.keyboard.press("Escape")

    expect(tab.page.locator("[data-side]")).to_be_hidden()
    assert tab.problems == []


@pytest.mark.usefixtures("measured")
def test_what_is_chosen_stands_in_the_address(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open(PAGE)
    tab.page.get_by_text("End to end", exact=True).click()
    tab.page.get_by_text("1 h", exact=True).click()
    tab.page.select_option("[name=lane]", "mid")
    wait_for_picture(tab)

    assert tab.page.url.endswith("/latency/?stage=e2e&range=1h&lane=mid")
    tab.page.reload()
    expect(tab.page.locator("[name=lane]")).to_have_value("mid")
    expect(tab.page.locator('[name=stage][value="e2e"]')).to_be_checked()
    tab.open(f"{PAGE}?from=2020-01-01T00:00:00Z&to=2020-01-01T01:00:00Z")
    expect(tab.page.locator("[data-problem]")).to_contain_text("Cells are kept for")
    assert [text for text in tab.problems if "status of 400" not in text] == []


@pytest.mark.usefixtures("measured")
def test_hostile_names_are_only_text(open_tab: OpenTab) -> None:
    """FC-55: lanes, labels, regions and ids that callers choose."""
    from playwright.sync_api import expect

    in_database(lambda: seed_hostile(now=timezone.now()))
    tab = open_tab()
    tab.sign_in("ada")
    for query in (f"?label={quote(HOSTILE)}&range=1h", "?range=1h&view=regions", f"?label={quote(HOSTILE)}"):
        tab.open(PAGE + query)
        wait_for_picture(tab)
        brush_all(tab)
        if "view" not in query:
            expect(tab.page.locator(".brushed")).to_contain_text("<script>")

    assert tab.page.locator("main img, main script").count() == 0
    assert tab.problems == []


def brush_all(tab: Tab) -> None:
    box = tab.page.locator(".plot").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + box["width"] - 80, box["y"] + 14)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 64, box["y"] + box["height"] - 46, steps=3)
    tab.page.mouse.up()
