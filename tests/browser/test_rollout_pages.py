"""Pages of rollouts in a real browser: clean, narrow enough, and doing what their buttons say."""

from __future__ import annotations

import os
from pathlib import Path

from pool.models import Rollout
from tests.browser.conftest import OpenTab, in_database
from tests.browser.seed_rollouts import MODEL, seed_rollouts

# Drawn anew for the width that there is.
FITS = """() => {
  const [plot, room] = [".main-svg", ""].map((part) => document.querySelector(`[data-evidence] ${part}`.trim()));
  return plot.getBoundingClientRect().width === room.clientWidth
    && document.querySelectorAll("[data-evidence] .scatterlayer .trace").length === 12;
}"""


def test_rollout_pages_are_clean_and_fit_and_take_back(open_tab: OpenTab, tmp_path: Path) -> None:
    shots = Path(os.environ.get("SLUICE_TEST_SHOTS") or tmp_path)
    shots.mkdir(parents=True, exist_ok=True)
    running, taken = in_database(seed_rollouts)
    tab = open_tab()
    tab.sign_in("otto")
    paths = {
        "rollout": f"/rollouts/{running.pk}/",
        "rollout-back": f"/rollouts/{taken.pk}/",
        "rollouts": f"/models/{MODEL}/rollouts/",
        "rollout-new": f"/models/{MODEL}/rollouts/new/",
    }
    for name, path in paths.items():
        assert tab.open(path) == 200
        if name == "rollout":
            tab.page.locator("[data-evidence] .scatterlayer").first.wait_for()
            tab.page.get_by_text("Loading …").first.wait_for(state="hidden")
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            for width in (1280, 390):
                tab.page.set_viewport_size({"width": width, "height": 900})
                if name == "rollout":
                    tab.page.wait_for_function(FITS)
                assert tab.overflow_px() <= 0, (name, width)
                tab.page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
    assert tab.problems == []

    tab.open(paths["rollout"])
    tab.page.get_by_role("button", name="Roll back").first.click()
    dialog = tab.page.locator("#dialog-back")
    assert MODEL in dialog.inner_text()
    dialog.get_by_role("button", name="Roll back now").click()
    tab.page.wait_for_url(f"**{paths['rollout']}")
    tab.page.get_by_text("rolling back").first.wait_for()

    assert in_database(lambda: Rollout.objects.get(pk=running.pk).phase) == "rolling_back"
