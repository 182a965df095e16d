"""Readiness to go back on the pages of a model, and the warning before what makes it worse."""

from __future__ import annotations

import os
from pathlib import Path

from pool.models import Scale
from tests.browser.conftest import OpenTab, in_database
from tests.browser.seed_rollouts import seed_rollouts

MODEL = "qwen2.5-7b"


def test_the_way_back_is_on_every_page_and_a_scale_down_warns_of_it(
    open_tab: OpenTab, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    shots = Path(os.environ.get("SLUICE_TEST_SHOTS") or tmp_path)
    shots.mkdir(parents=True, exist_ok=True)
    running, _ = in_database(seed_rollouts)
    tab = open_tab()
    tab.sign_in("ada")
    paths = {"overview": "/", "models": "/models/", "rollout": f"/rollouts/{running.pk}/"}
    for name, path in (paths | {"model": f"/models/{MODEL}/"}).items():
        assert tab.open(path) == 200
        expect(tab.page.locator(".readiness", has_text="back to release 1").first).to_be_visible()
        tab.page.screenshot(path=shots / f"way-back-{name}.png")

    row = tab.page.locator('[data-scale][data-back="yes"]').first
    expect(row).to_have_attribute("data-release", "1")
    row.click()
    dialog = tab.page.locator("#dialog-scale")
    expect(dialog.locator("[data-when=back]")).to_be_hidden()
    tab.page.fill("#scale-replicas", "0")
    expect(dialog.locator("[data-when=back]")).to_contain_text("One click on rollback goes to this release:")
    expect(dialog.get_by_label("Also if the rest cannot carry the present requests")).not_to_be_checked()
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            tab.page.set_viewport_size({"width": width, "height": 900})
            assert tab.overflow_px() <= 0, width
            tab.page.screenshot(path=shots / f"scale-{width}-{scheme}.png")
    dialog.get_by_role("button", name="Scale").click()
    expect(tab.page.locator(".messages")).to_contain_text(
        "The rest would be overloaded: release 1 has no ready"
    )

    assert in_database(lambda: Scale.objects.get(release__model__name=MODEL, release__number=1)).replicas == 2
    assert tab.problems == []
