from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from pool.domain.prometheus import Page
from pool.telemetry.ingest import Counts, Ingester
from pool.telemetry.memory import Memory
from pool.telemetry.metrics import fill_telemetry


def read(ingester: Ingester) -> dict[str, list[tuple[dict[str, str], float]]]:
    page = Page()
    fill_telemetry(page, ingester, now_s=1000.0)
    return {
        family.name: [(one.labels, one.value) for one in family.samples]
        for family in text_string_to_metric_families(page.render())
    }


def test_before_anything_was_stored_its_time_is_absent() -> None:
    found = read(Ingester("redis://127.0.0.1:1/0"))

    assert found["sluice_store_batches"] == [({}, 0)]
    assert not {"sluice_store_seconds", "sluice_store_age_seconds", "sluice_stream_read"} & set(found)


def test_what_was_read_and_stored_is_told() -> None:
    ingester = Ingester("redis://127.0.0.1:1/0")
    memory = Memory.empty(990.0)
    memory.fold_facts("990000-0", b"no json", now_s=990.0)
    ingester.memory = memory
    ingester.counts = Counts(store_s=0.02, newest_stored_at_s=997.5)

    found = read(ingester)

    assert [labels["stream"] for labels, _ in found["sluice_stream_read"]] == ["facts", "samples"]
    assert [value for _, value in found["sluice_stream_read"]] == [1, 0]
    assert [value for _, value in found["sluice_stream_unreadable"]] == [1, 0]
    assert [found[f"sluice_store_{name}"][0][1] for name in ("seconds", "age_seconds")] == [0.02, 2.5]
