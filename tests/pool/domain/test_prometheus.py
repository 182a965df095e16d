from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pool.domain.metric_names import METRICS
from pool.domain.prometheus import STEP_BOUNDS_S, ClassicHistogram, Page

TIMES = st.floats(min_value=0, max_value=1e5, allow_nan=False)


@given(st.lists(TIMES))
def test_buckets_count_what_is_not_above_their_bound(times: list[float]) -> None:
    histogram = ClassicHistogram(STEP_BOUNDS_S)
    histogram.observe_many(times)
    page = Page()
    page.set_histogram("engine_step_latency_seconds", histogram, stage="decode")

    (family,) = text_string_to_metric_families(page.render())

    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets == {
        **{str(float(bound)): sum(value <= bound for value in times) for bound in STEP_BOUNDS_S},
        "+Inf": len(times),
    }
    assert next(s.value for s in family.samples if s.name.endswith("_count")) == len(times)
    total_s = next(s.value for s in family.samples if s.name.endswith("_sum"))
    assert total_s == pytest.approx(math.fsum(times))


def test_fc_29_what_was_not_measured_is_absent() -> None:
    page = Page()
    for value in (None, math.nan, math.inf):
        page.set("gpu_mem_allocated_ratio", value, device="GPU-1")

    assert page.render() == ""


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", 'c{le="1"} 5\nfaked 1'])
def test_hostile_names_stay_labels_fc55(name: str) -> None:
    page = Page({"node": name})
    page.set("sluice_engine_running", 2, model=name)

    (family,) = text_string_to_metric_families(page.render())

    assert [(s.name, s.labels, s.value) for s in family.samples] == [
        ("sluice_engine_running", {"node": name, "model": name}, 2.0)
    ]


def test_a_family_is_whole_although_its_values_came_one_by_one() -> None:
    page = Page()
    for replica in ("r1", "r2"):
        page.set("sluice_engine_running", 1, replica=replica)
        page.set("sluice_engine_preemptions_total", 0.5, replica=replica)

    text = page.render()

    assert text.count("# TYPE sluice_engine_running gauge") == 1
    assert [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")] == [
        *["sluice_engine_running"] * 2, *["sluice_engine_preemptions_total"] * 2,
    ]  # fmt: skip


def test_values_that_are_no_times_are_not_counted() -> None:
    histogram = ClassicHistogram((1.0,))
    histogram.observe_many((-1.0, math.nan, math.inf))

    assert (histogram.counts, histogram.sum_s) == ([0, 0], 0.0)


def test_counters_are_named_as_counters() -> None:
    assert [n for n, m in METRICS.items() if (m.kind == "counter") != n.endswith("_total")] == []
