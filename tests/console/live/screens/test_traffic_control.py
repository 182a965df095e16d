"""Words and tones of traffic control."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from console.live.screens.traffic_control import NO_BREAK, build_traffic_control
from pool.queries import gateway_states
from pool.services.errors import NotFound
from tests import factories
from tests.browser.seed import seed_pool
from tests.browser.seed_gateways import clear_gateways, seed_gateways

pytestmark = pytest.mark.django_db
MODEL = "qwen2.5-7b"


@pytest.fixture(autouse=True)
def _ask_redis_anew() -> None:
    gateway_states._reader.cache_clear()


def _rows(tree: dict[str, object], name: str) -> dict[str, dict[str, Any]]:
    rows: Any = tree[name]
    return {row["id"]: row for row in rows}


def test_a_seeded_pool_is_told_with_its_reasons() -> None:
    seed_pool()
    seed_gateways(now=datetime.now(UTC))

    tree = build_traffic_control(MODEL)
    clear_gateways()

    lanes, replicas, releases = (_rows(tree, name) for name in ("lanes", "replicas", "releases"))
    mid, full = lanes["1-mid"], replicas["rx8w4c5v2p"]
    assert (mid["in_flight"], mid["limit"], mid["fill"], mid["fill_tone"]) == ("16", "16", "100%", "warn")
    assert (mid["growth"], mid["growth_reason"]) == (
        "no new batch",
        f"more wait than ten minutes ago, for 2{NO_BREAK}min{NO_BREAK}12{NO_BREAK}s",
    )
    assert (mid["ttft_tone"], lanes["1-short"]["ttft_tone"]) == ("warn", "ok")
    assert (mid["refused"], lanes["1-short"]["refused"], lanes["1-mid"]["release"]) == (
        "42",
        "0",
        "release 1, 75 %",
    )
    assert (full["slots"], full["kv_tokens"]) == ("of 256 slots", "of 120,000 tokens")
    assert (full["mark"], full["kv_tone"], full["breaker"]) == ("no new long", "warn", "on trial")
    assert full["breaker_reason"] == f"no progress while work waits, for 41{NO_BREAK}s"
    assert (releases["2"]["alarm"], releases["2"]["tokenizer"]) == (True, "degraded")
    tiles: Any = tree["tiles"]
    assert (tiles["cache"], tiles["refused_words"]) == ("23 %", "shed 42, rate_limited 14, overloaded 8")


def test_what_nobody_told_is_a_dash_and_unknown() -> None:
    factories.make_routing_state()
    model = factories.make_model(MODEL)
    factories.make_replica(factories.make_release(model), node=factories.make_node(), id="ra")

    tree = build_traffic_control(MODEL)

    lane, replica = _rows(tree, "lanes")["1-short"], _rows(tree, "replicas")["ra"]
    assert (tree["nobody"], tree["redis_silent"]) == (True, False)
    assert (lane["in_flight"], lane["fill"], lane["growth"]) == ("—", "0%", "unknown")
    assert (replica["kv"], replica["breaker"], replica["breaker_tone"]) == ("—", "unknown", "idle")


def test_a_cache_and_a_shadow_that_are_off_are_no_unknown_figures() -> None:
    factories.make_routing_state()
    model = factories.make_model(MODEL)

    tiles: Any = build_traffic_control(MODEL)["tiles"]
    assert (tiles["cache"], tiles["shadow"]) == ("off", "off")

    model.gateway = {"cache_s": 60}
    model.save()
    factories.make_plan(model, shadow={"release": 2, "percent": 5})
    tiles = build_traffic_control(MODEL)["tiles"]
    assert (tiles["cache"], tiles["cache_words"]) == ("—", "nothing deterministic was asked")
    assert (tiles["shadow"], tiles["shadow_words"]) == ("—", "tokens, — requests")


def test_a_silent_redis_is_said(settings: Any) -> None:
    factories.make_routing_state()
    factories.make_model(MODEL)
    settings.REDIS_URL = "unix:///nowhere/redis.sock"

    tree = build_traffic_control(MODEL)
    gateway_states._reader.cache_clear()

    tiles: Any = tree["tiles"]
    assert (tree["redis_silent"], tree["nobody"], tree["no_lanes"]) == (True, False, True)
    assert (tiles["in_flight"], tiles["refused"]) == ("—", "—")


def test_an_unknown_model_has_no_screen() -> None:
    with pytest.raises(NotFound):
        build_traffic_control("nobody")
