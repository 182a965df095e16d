"""Counting, merging and rendering."""

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pool.gateway.facts import FactBuffer
from pool.gateway.metrics import BUCKETS_S, COUNTERS, GAUGES, HISTOGRAMS, Metrics, merge_host, write_snapshot

LABELS = ("m", "1", "short", "vip")


def make_metrics(*, ok: int = 1, version: int = 5) -> Metrics:
    metrics = Metrics()
    series = metrics.series(LABELS)
    for _ in range(ok):
        series.count("ok")
        series.ttft.observe(0.004)
        series.e2e.observe(2000.0)
    series.in_flight = 2
    metrics.table_version = version
    metrics.facts_dropped = 1
    return metrics


def test_the_page_has_the_contracts_names() -> None:
    page = make_metrics().render().decode()

    labels = 'model="m",release="1",lane="short",tier="vip"'
    assert f'sluice_requests_total{{{labels},outcome="ok"}} 1\n' in page
    assert f'sluice_ttft_seconds_bucket{{{labels},le="0.005"}} 1\n' in page
    assert f'sluice_e2e_seconds_bucket{{{labels},le="1800.0"}} 0\n' in page
    assert f'sluice_e2e_seconds_bucket{{{labels},le="+Inf"}} 1\n' in page
    assert f"sluice_e2e_seconds_sum{{{labels}}} 2000.000000\n" in page
    assert f"sluice_in_flight{{{labels}}} 2\n" in page
    assert "sluice_routing_table_version 5\n" in page


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.series(('a"b\\c\nd', "", "", "")).count("ok")

    assert 'model="a\\"b\\\\c\\nd"' in metrics.render().decode()


def test_the_processes_of_a_host_are_summed(tmp_path: Path) -> None:
    write_snapshot(make_metrics(ok=3, version=4), tmp_path, worker=1)
    write_snapshot(make_metrics(ok=100), tmp_path, worker=0)
    (tmp_path / "metrics-2.json").write_bytes(b"{half")
    os.utime(tmp_path / "metrics-1.json", (1000, 1000))

    merged = merge_host(make_metrics(ok=2), tmp_path, worker=0, now_s=1001)

    series = merged.series(LABELS)
    assert series.outcomes == {"ok": 5}
    assert (sum(series.ttft.counts), series.e2e.sum_s, series.in_flight) == (5, 10_000.0, 4)
    assert (merged.table_version, merged.facts_dropped) == (4, 2)


def test_a_process_that_is_gone_no_longer_counts(tmp_path: Path) -> None:
    write_snapshot(make_metrics(ok=3), tmp_path, worker=1)
    os.utime(tmp_path / "metrics-1.json", (1000, 1000))

    merged = merge_host(make_metrics(ok=2), tmp_path, worker=0, now_s=1100)

    assert merged.series(LABELS).outcomes == {"ok": 2}


def test_bounds_rise() -> None:
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_the_buffer_drops_the_oldest_and_counts() -> None:
    buffer = FactBuffer(capacity=2)
    for number in range(4):
        buffer.add({"n": number})

    assert buffer.take(10) == [{"n": 2}, {"n": 3}]
    assert (len(buffer), buffer.dropped) == (0, 2)
    buffer.drop(3)
    assert buffer.dropped == 5


def test_every_name_is_what_prometheus_reads() -> None:
    metrics = make_metrics()
    series = metrics.series(LABELS)
    series.itl.observe(0.02)
    series.queue_delay.observe(0.3)
    for name in COUNTERS:
        metrics.counter(name, model='a "quoted" \\ name', lane="short").value += 2
    for name in GAUGES:
        metrics.gauge(name, model="m").value = 0.5
    metrics.counter("sluice_received_bytes_total").value += 7

    families = {one.name: one for one in text_string_to_metric_families(metrics.render().decode())}

    for name in COUNTERS:
        family = families[name.removesuffix("_total")]
        assert (family.type, family.documentation) == ("counter", COUNTERS[name])
        assert family.samples[0].labels == {"model": 'a "quoted" \\ name', "lane": "short"}
        assert family.samples[0].value == 2
    for name in GAUGES:
        assert (families[name].type, families[name].samples[0].value) == ("gauge", 0.5)
    for name in HISTOGRAMS:
        samples = families[f"sluice_{name}_seconds"].samples
        assert samples[-1].name == f"sluice_{name}_seconds_count"
        assert samples[-1].value == 1
    assert families["sluice_received_bytes"].samples[-1].value == 7


def test_counters_are_summed_and_gauges_put_together_as_they_say(tmp_path: Path) -> None:
    other, own = make_metrics(), make_metrics()
    for metrics, value in ((other, 3), (own, 5)):
        metrics.counter("sluice_retries_total", model="m").value += value
        metrics.gauge("sluice_queued", model="m").value = value
        metrics.gauge("sluice_loop_lag_seconds").value = value
    write_snapshot(other, tmp_path, worker=1)
    os.utime(tmp_path / "metrics-1.json", (1000, 1000))

    merged = merge_host(own, tmp_path, worker=0, now_s=1001)

    assert merged.counter("sluice_retries_total", model="m").value == 8
    assert merged.gauge("sluice_queued", model="m").value == 8
    assert merged.gauge("sluice_loop_lag_seconds").value == 5


def test_a_snapshot_of_another_version_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics-1.json").write_bytes(b'{"series": [[["m", "1", "short", "vip"], {}]]}')

    merged = merge_host(make_metrics(ok=2), tmp_path, worker=0, now_s=0)

    assert merged.series(LABELS).outcomes == {"ok": 2}


def test_what_is_counted_keeps_its_object_and_a_forgotten_gauge_is_gone() -> None:
    metrics = Metrics()
    breaker = metrics.gauge("sluice_breaker_open", replica="r1")
    breaker.value = 1
    assert metrics.gauge("sluice_breaker_open", replica="r1") is breaker
    assert b'sluice_breaker_open{replica="r1"} 1' in metrics.render()

    metrics.forget_gauges(frozenset({"sluice_breaker_open"}))

    assert b"sluice_breaker_open" not in metrics.render()


def test_an_unknown_name_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        Metrics().counter("sluice_other_total")
