"""What telemetry's `/metrics` says: how far it read, what it could not read, and how storing goes."""

from __future__ import annotations

from pool.domain.prometheus import Page
from pool.telemetry.ingest import Ingester


def fill_telemetry(page: Page, ingester: Ingester, now_s: float) -> None:
    """Counters of reading begin anew when memory is built again from the tables, as at a restart."""
    counts, memory = ingester.counts, ingester.memory
    if memory is not None:
        for stream, reading in (("facts", memory.facts), ("samples", memory.samples)):
            page.set("sluice_stream_read_total", reading.entries, stream=stream)
            page.set("sluice_stream_unreadable_total", reading.unreadable, stream=stream)
        page.set("sluice_facts_read_total", memory.fact_count)
        page.set("sluice_samples_read_total", memory.sample_count)
    page.set("sluice_stream_cut_total", counts.lost_entries)
    page.set("sluice_store_batches_total", counts.stored_batches)
    page.set("sluice_store_failures_total", counts.failed_batches)
    page.set("sluice_store_discarded_total", counts.discarded)
    page.set("sluice_open_messages_total", counts.messages)
    if counts.newest_stored_at_s is not None:
        page.set("sluice_store_seconds", counts.store_s)
        page.set("sluice_store_age_seconds", max(0.0, now_s - counts.newest_stored_at_s))
