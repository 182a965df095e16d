from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from console.live.screens.activity import activity_tree
from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.domain.quality import Quality
from pool.queries.activity import load_activity
from pool.telemetry.store import add_cells, add_gauges

pytestmark = pytest.mark.django_db
KEY = SeriesKey("smollm2", release=1, replica="r1", lane="short", tier="standard")


def make_quality(**values: int) -> Quality:
    given = {
        "answers": 100, "empty": 0, "repeated": 0, "cut_by_length": 0, "output_tokens": 6_400,
        "answers_before": 1_000, "output_tokens_before": 64_000,
    } | values  # fmt: skip
    return Quality("smollm2", 1, **given)


def test_rates_errors_and_quality_are_summed_over_series() -> None:
    now = timezone.now()
    cell = Cell(
        counts={"requests": 60, "errors": 2, "output_tokens": 600, "empty": 3},
        outcomes={"ok": 55, "upstream_failed": 2, "client_gone": 3},
    )
    add_cells({(KEY, now - timedelta(minutes=1)): cell})
    add_cells({(SeriesKey("smollm2", region="eu"), now - timedelta(minutes=1)): cell})

    seen = load_activity(now=now)

    (step,) = seen.throughput
    assert (step.requests_per_s, step.errors_per_s, step.output_tokens_per_s) == (6, 0.2, 60)
    assert [(row.outcome, row.requests) for row in seen.outcomes] == [
        ("ok", 55),
        ("client_gone", 3),
        ("upstream_failed", 2),
    ]
    (quality,) = seen.quality
    assert (quality.answers, quality.empty, quality.signs) == (55, 3, ("empty",))


def test_a_minute_without_a_measurement_is_missing_and_not_idle_fc29() -> None:
    now = timezone.now().replace(second=30)
    cell = GaugeCell()
    cell.note("utilization_ratio", 0.5)
    cell.note("pcie_tx_bytes_per_s", 1e9)
    cell.note("pcie_rx_bytes_per_s", 2e9)
    add_gauges({(Subject("device", "GPU-1", node="n1"), now - timedelta(minutes=2)): cell})
    add_gauges({(Subject("device", "GPU-2", node="n1"), now - timedelta(minutes=2)): GaugeCell()})

    seen = load_activity(now=now)

    assert [row.utilization[-4:] for row in seen.devices] == [(None, 0.5, None, None), (None,) * 4]
    assert [(step.tx_bytes_per_s, step.rx_bytes_per_s) for step in seen.pcie] == [(1e9, 2e9)]
    assert [row["now"] for row in activity_tree(seen)["devices"]] == ["50 %", "—"]  # type: ignore[attr-defined]


def test_nothing_is_told_as_nothing() -> None:
    tree = activity_tree(load_activity(now=timezone.now()))

    assert tree["quiet"] is True
    assert tree["errors"] == tree["quality"] == tree["devices"] == []


@pytest.mark.parametrize(
    ("quality", "signs"),
    [
        (make_quality(), ()),
        (make_quality(empty=2), ("empty",)),
        (make_quality(repeated=3), ("repeated",)),
        (make_quality(output_tokens=12_800), ("length_jump",)),
        (make_quality(output_tokens=3_000), ("length_jump",)),
        (make_quality(answers=49, empty=40, output_tokens=90_000), ()),
        (make_quality(answers_before=10, output_tokens=90_000), ()),
    ],
)
def test_too_few_answers_show_nothing(quality: Quality, signs: tuple[str, ...]) -> None:
    assert quality.signs == signs
