"""The dashboard asks only for series that exist, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pool.domain.metric_names import METRICS
from pool.gateway import metrics as gateway

DASHBOARD = Path(__file__).parents[1] / "docs" / "grafana" / "sluice.json"
FUNCTIONS = {"histogram_quantile", "sum", "rate", "by", "max", "label_values"}
OF_REQUESTS = frozenset({"model", "release", "lane", "tier"})
# Prometheus' own, on each series.
OF_TARGETS = frozenset({"instance", "job"})
ENDINGS = ("_bucket", "_sum", "_count")


def known_series() -> dict[str, frozenset[str]]:
    """Name on the page → labels; those of the gateway's own counters and gauges are not listed by it."""
    found: dict[str, frozenset[str]] = {}
    for name, metric in METRICS.items():
        labels = frozenset(metric.labels)
        if metric.kind == "histogram":
            found |= {f"{name}{ending}": labels | {"le"} for ending in ENDINGS}
        else:
            found[name] = labels
    for name in gateway.HISTOGRAMS:
        found |= {f"sluice_{name}_seconds{ending}": OF_REQUESTS | {"le"} for ending in ENDINGS}
    found |= {
        name: frozenset({"lane", "model", "code", "reason"}) for name in (*gateway.COUNTERS, *gateway.GAUGES)
    }
    found["sluice_requests_total"] = OF_REQUESTS | {"outcome"}
    found["sluice_in_flight"] = OF_REQUESTS
    found["sluice_facts_dropped_total"] = frozenset()
    return found


def list_targets() -> Iterator[Mapping[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from panel.get("targets", [])


@pytest.mark.parametrize("target", list(list_targets()), ids=lambda target: str(target["expr"])[:80])
def test_every_query_uses_series_and_labels_that_exist(target: Mapping[str, Any]) -> None:
    known = known_series()
    bare = re.sub(r'"[^"]*"', '""', re.sub(r"\[[^\]]*\]", "", target["expr"]))
    selectors = dict(re.findall(r"([a-z_]+)\{([^}]*)\}", bare))
    grouped = {name for names in re.findall(r"by \(([^)]*)\)", bare) for name in names.split(", ")}
    words = set(re.findall(r"[a-z_]{3,}", re.sub(r"\{[^}]*\}|by \([^)]*\)", "", bare))) - FUNCTIONS

    assert words
    assert words <= set(known)
    labels = frozenset().union(*(known[word] for word in words)) | OF_TARGETS
    asked = {label for text in selectors.values() for label in re.findall(r"([a-z_]+)=", text)}
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert asked | grouped | shown <= labels


def test_the_query_of_the_contract_is_on_it_as_written() -> None:
    wanted = "histogram_quantile(0.99, sum(rate(engine_step_latency_seconds_bucket[5m])) by (le, stage))"

    assert wanted in [target["expr"] for target in list_targets()]


def test_panels_do_not_overlap_and_their_ids_are_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]

    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)
