"""The memory pages in a browser: a heatmap that is read by keyboard, and a block map that is drawn live."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.browser.conftest import OpenTab, in_database
from tests.browser.seed_memory import BLOCKS, BUSY, SIM, clear_memory, put_block_map, seed_memory

LIVE = '[data-live-state="live"]'
MOST_BLOCKS = 200_000
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def _memory(pool: None) -> Iterator[None]:
    now = timezone.now()
    seed_memory(now=now, length=timedelta(minutes=4), fresh_for=timedelta(minutes=2))
    yield
    in_database(clear_memory)


def test_a_heatmap_is_switched_and_read_by_keyboard(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open("/memory/?minutes=5")
    page = tab.page
    expect(page.locator(LIVE)).to_be_visible()
    expect(page.locator("[data-grid-labels] a")).to_have_count(3)

    page.focus("[data-grid-canvas]")
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("[data-grid-reading]")).to_contain_text(BUSY)
    page.locator("label", has_text="Allocator").click()
    expect(page.locator("[data-grid-labels] a")).to_have_count(2)

    assert "kind=allocator&minutes=5" in page.url.replace(
        "minutes=5&kind=allocator", "kind=allocator&minutes=5"
    )
    assert _painted_px(page, "[data-grid-canvas]") > 0
    assert tab.overflow_px() <= 0
    assert tab.problems == []


def _painted_px(page: Any, selector: str) -> int:
    """Pixels of the canvas that something was drawn on."""
    return int(
        page.evaluate(
            """(selector) => {
                const canvas = document.querySelector(selector);
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                return data.reduce((count, value, place) => count + (place % 4 === 3 && value > 0 ? 1 : 0), 0);
            }""",
            selector,
        )
    )


def test_a_block_map_comes_and_tells_whose_a_block_is(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=390, scheme="dark")
    tab.sign_in("vera")
    tab.open(f"/replicas/{BUSY}/memory/")
    page = tab.page
    expect(page.locator("[data-map-size]")).to_have_text(f"{BLOCKS:,} blocks of 16 tokens")
    expect(page.locator("[data-map-note]")).to_be_hidden()
    expect(page.locator("[data-map-requests] tr")).to_have_count(12)

    page.focus("[data-map-canvas]")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-map-reading]")).to_contain_text("block ")
    page.locator("label", has_text="By request").click()

    assert _painted_px(page, "[data-map-canvas]") > 0
    assert tab.overflow_px() <= 0
    assert tab.problems == []


def test_the_largest_map_is_drawn_and_follows_what_changes(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    in_database(
        lambda: put_block_map(SIM, now=timezone.now(), blocks=MOST_BLOCKS, requests=250, name=HOSTILE)
    )
    tab = open_tab()
    tab.sign_in("vera")
    tab.open(f"/replicas/{SIM}/memory/")
    size = tab.page.locator("[data-map-size]")
    expect(size).to_have_text(f"{MOST_BLOCKS:,} blocks of 16 tokens")
    expect(tab.page.locator("[data-map-requests] tr").first).to_contain_text(HOSTILE)
    assert _painted_px(tab.page, "[data-map-canvas]") > MOST_BLOCKS // 2

    in_database(lambda: put_block_map(SIM, now=timezone.now(), blocks=1, requests=0))

    expect(size).to_have_text("1 blocks of 16 tokens")
    expect(tab.page.locator("[data-map-no-requests]")).to_be_visible()
    assert tab.problems == []


def test_without_a_map_the_page_says_so(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab()
    tab.sign_in("vera")
    tab.open(f"/replicas/{SIM}/memory/")

    expect(tab.page.locator("[data-map-note]")).to_contain_text("There is no block map", timeout=15_000)
    expect(tab.page.locator("[data-map-count=used]")).to_have_text("—")
    expect(tab.page.locator("text=A simulated engine has no allocator.")).to_be_visible()
    assert tab.problems == []
