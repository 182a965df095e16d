"""The first sentence and what needs attention."""

from __future__ import annotations

import pytest
from django.utils import timezone

from console.live.screens.overview import build_overview, overview_tree
from pool.models import Alert, GatewayInstance, Node, Replica
from pool.queries.overview import load_overview
from tests import factories
from tests.browser.seed import seed_pool

pytestmark = pytest.mark.django_db


def build() -> dict[str, object]:
    return overview_tree(load_overview(now=timezone.now()))


def problems() -> list[str]:
    found = build()["problems"]
    assert isinstance(found, list)
    return [str(problem["words"]) for problem in found]


def test_an_empty_pool_says_so() -> None:
    factories.make_routing_state()

    tree = build()

    assert str(tree["headline"]).startswith("0 of 0 replicas ready, no gateway on table")
    assert tree["tone"] == "idle"


def test_a_failed_replica_is_the_first_thing_told() -> None:
    seed_pool()

    assert problems()[0].startswith("Replica rb5y1h8z3e of qwen2.5-7b failed: The KV cache holds")
    assert build()["tone"] == "bad"


def test_a_silent_gateway_and_a_lost_node_are_told() -> None:
    seed_pool()
    Replica.objects.filter(phase="failed").update(wish="stop")
    GatewayInstance.objects.filter(id="gw-edge-8080").update(seen_at=factories.T0)
    Node.objects.filter(name="gpu-a").update(phase="unreachable", reason_text="the node's lease has run out")

    told = problems()

    assert told[0] == "Node gpu-a is unreachable: the node's lease has run out"
    assert "Gateway gw-edge-8080 is silent" in told[1]


def test_an_alert_that_nobody_has_acknowledged_is_told() -> None:
    seed_pool()
    Replica.objects.filter(phase="failed").update(wish="stop")
    for level, acknowledged_at in (("orange", None), ("yellow", None), ("red", timezone.now())):
        Alert.objects.create(
            source=f"slo:{level}", rule="ttft_p99", subject="qwen2.5-7b", model="qwen2.5-7b", lane="short", level=level,
            peak=level, opened_at=factories.T0, level_since=factories.T0, seen_at=factories.T0,
            acknowledged_at=acknowledged_at,
            evidence={"value": 2.71, "unit": "s", "window_s": 300, "samples": 1240},
        )  # fmt: skip

    (told,) = [str(one["words"]) for one in build_overview()["problems"] if "Alert" in str(one["words"])]  # type: ignore[attr-defined]

    assert told.startswith("Alert, orange:")
    assert "qwen2.5-7b / short: 2.71 s" in told


def test_a_calm_pool_is_ok() -> None:
    seed_pool()
    Replica.objects.exclude(phase="ready").delete()

    tree = build()

    assert tree["problems"] == []
    assert tree["tone"] == "ok"
