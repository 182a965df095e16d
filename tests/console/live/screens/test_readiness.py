"""Readiness to go back in words and tones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.live.screens.model import build_model, build_models
from console.live.screens.overview import build_overview
from console.live.screens.readiness import readiness_cells
from pool.domain.readiness import State
from pool.queries.readiness import Readiness
from tests.browser.seed import seed_pool
from tests.factories import T0

WARM = Readiness(
    model="smollm2", state=State.WARM, plan=6, release=6, seconds=0.1, capacity_ratio=1.2, capacity_samples=900,
    replicas_ready=2, replicas_wanted=2, start_s=340.0, starts=3, applies_s=0.04, gateways=2, gateways_silent=0,
    reason="", at=T0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("told", "words", "tone"),
    [
        (WARM, "back to release 6 in 0.1 s: warm, capacity 120 %", "ok"),
        (replace(WARM, capacity_ratio=0.6), "back to release 6 in 0.1 s: warm, capacity 60 %", "warn"),
        (replace(WARM, capacity_ratio=40.0), "back to release 6 in 0.1 s: warm, capacity over 999 %", "ok"),
        (
            replace(WARM, capacity_ratio=None, applies_s=None, seconds=2.0),
            "back to release 6 in at most 2.0 s: warm, capacity unknown without requests",
            "ok",
        ),
        (
            replace(WARM, gateways_silent=1),
            "back to release 6 in 0.1 s: warm, capacity 120 %; 1 gateway is silent and may send on",
            "warn",
        ),
        (
            replace(
                WARM, state=State.STARTING, seconds=40.0, replicas_ready=0, reason="0 of 2 replicas ready"
            ),
            "back to release 6 in 40 s: starting, 0 of 2 replicas ready, measured start 5 min 40 s",
            "busy",
        ),
        (
            replace(WARM, state=State.STARTING, seconds=None, replicas_ready=0, start_s=None),
            "back to release 6 in an unknown time: starting",
            "busy",
        ),
        (
            replace(
                WARM,
                state=State.COLD,
                seconds=340.1,
                replicas_ready=0,
                reason="weights must be loaded (measured start 5 min 40 s)",
            ),  # fmt: skip
            "back to release 6 in 5 min 40 s: cold, weights must be loaded (measured start 5 min 40 s)",
            "warn",
        ),
        (
            replace(WARM, state=State.IMPOSSIBLE, seconds=None, reason="no node holds its weights"),
            "no way back to release 6: no node holds its weights",
            "bad",
        ),
        (
            replace(WARM, state=State.NOWHERE, release=None, reason="no older plan"),
            "nowhere to go back to: no older plan",
            "idle",
        ),
        (None, "", "idle"),
    ],
)
def test_it_says_where_to_how_soon_and_why(told: Readiness | None, words: str, tone: str) -> None:
    assert readiness_cells(told) == {"readiness": words, "readiness_tone": tone}


@pytest.mark.django_db
def test_every_list_and_page_of_a_model_has_it() -> None:
    seed_pool()

    on_overview = {row["id"]: row["readiness"] for row in build_overview()["models"]}  # type: ignore[attr-defined]
    on_list = {row["id"]: row["readiness"] for row in build_models()["models"]}  # type: ignore[attr-defined]
    assert on_overview == on_list
    for name, words in on_list.items():
        assert words
        assert build_model(name)["readiness"] == words


@pytest.mark.django_db
def test_pages_show_it_before_any_script_runs(sign_in: Callable[[User], Client], viewer: User) -> None:
    seed_pool()
    client = sign_in(viewer)

    for path in ("/", "/models/", "/models/qwen2.5-7b/"):
        page = client.get(path).content.decode()
        assert 'data-cell="readiness">back to release' in page, path
