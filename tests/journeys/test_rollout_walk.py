"""The walk of docs/rollout.md in a real browser on a whole installation: release 2 is promoted and taken back by one
click, a bad release 3 is taken back by itself. Screenshots are kept where SLUICE_TEST_SHOTS says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.journeys.installation import Installed, wait_until
from tests.journeys.rollouts import Load, add_release, under_load

MODEL = "smollm2"
LONG_MS = 300_000
# As docs/rollout.md has them: what some hundred requests can show.
FORM = {
    "steps": "20 15 20\n50 15 20",
    "hold_min": "0",
    "errors-margin_points": "20",
    "interrupted-margin_points": "20",
    "shape-margin_points": "40",
    "shape-margin_ratio": "900",
    "ttft-margin_ratio": "300",
    "itl-margin_ratio": "300",
    "per_token-margin_ratio": "300",
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not Path(CHROMIUM).exists() and os.environ.get("CI") != "true", reason=f"no Chromium at {CHROMIUM}"
    ),
]


@pytest.fixture
def page(own: Installed) -> Iterator[Any]:
    """Signed in as the administrator that the first start made."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1280, "height": 1400}, color_scheme="light")
        tab = context.new_page()
        tab.set_default_timeout(60_000)
        tab.goto(f"http://127.0.0.1:{own.web_port}/sign-in/")
        tab.fill("#id_username", "admin")
        tab.fill("#id_password", own.variables["SLUICE_ADMIN_PASSWORD"])
        tab.click("button.primary")
        tab.wait_for_url(f"http://127.0.0.1:{own.web_port}/")
        yield tab
        chromium.close()


def keep(page: Any, name: str, tmp_path: Path) -> None:
    shots = Path(os.environ.get("SLUICE_TEST_SHOTS") or tmp_path)
    shots.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=shots / f"{name}.png")


def begin(page: Any, own: Installed, candidate: int) -> str:
    """From the model's page, through the form, to the rollout that has begun; its id."""
    page.goto(f"http://127.0.0.1:{own.web_port}/models/{MODEL}/")
    page.click(f'a[href$="/rollouts/new/?candidate={candidate}"]')
    for name, value in FORM.items():
        page.fill(f'[name="{name}"]', value)
    preview = page.locator("#preview")
    preview.get_by_text("20 % of new requests for 15 s at least").wait_for()
    assert f"Release {candidate} gets 1 replica." in preview.inner_text()
    page.get_by_role("button", name="Begin the rollout").click()
    page.wait_for_url("**/rollouts/o*/")
    page.locator(".messages [data-dismiss]").click()
    return str(page.url.rstrip("/").rsplit("/", 1)[1])


def wait_phase(page: Any, words: str) -> None:
    page.locator('.title-line [data-cell="phase"]', has_text=words).wait_for(timeout=LONG_MS)


def wait_traffic(own: Installed, load: Load, release: int) -> None:
    wait_until(
        lambda: load.answers and load.answers[-1].release == release,
        limit_s=30,
        what=f"release {release} serves",
    )


def test_release_2_is_promoted_and_one_click_takes_it_back(own: Installed, page: Any, tmp_path: Path) -> None:
    candidate = add_release(own, MODEL, "walk-two", {"max_num_seqs": 64})
    with under_load(own, MODEL, clients=4, tokens=8, pause_s=0.2) as load:
        begin(page, own, candidate)
        wait_phase(page, "step 2 of 2")
        page.locator("[data-evidence] .scatterlayer path").first.wait_for(state="attached")
        keep(page, "rollout", tmp_path)
        wait_phase(page, "promoted")
        assert "Release 2 is promoted" in page.locator(".outcome").inner_text()
        wait_traffic(own, load, candidate)

        page.goto(f"http://127.0.0.1:{own.web_port}/")
        page.locator("[data-take-back]:visible").click()
        told = page.locator("#dialog-take-back").inner_text()
        page.get_by_role("button", name="Roll back now").click()
        page.get_by_text("Watch below which gateways have applied it").wait_for()
        wait_traffic(own, load, 1)

    assert f"Plan 1 of {MODEL} is put back within a second: release 1: 100 %." in told
    assert load.errors == []


def test_a_bad_release_3_is_taken_back_by_itself(own: Installed, page: Any, tmp_path: Path) -> None:
    candidate = add_release(own, MODEL, "walk-bad", {"rehearsal": "errors"})
    with under_load(own, MODEL, clients=4, tokens=8, pause_s=0.2) as load:
        begin(page, own, candidate)
        wait_phase(page, "rolled back")
        outcome = page.locator(".outcome").inner_text()
        page.get_by_text("complete: every gateway serves the plan").wait_for()
        keep(page, "rollout-back", tmp_path)
        wait_traffic(own, load, 1)

    assert "Taken back: release 1 has the traffic of smollm2 again" in outcome
    assert "errors" in outcome, "the cause, with its gate"
