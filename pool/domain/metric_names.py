"""Every series of web, control, telemetry and worker: name → kind, labels, meaning. The gateway's are in its own page.

The names without `sluice_` are those that dashboards and rules of this field already use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPLICA_LABELS: Final = ("model", "release", "lane", "replica", "node")


@dataclass(frozen=True, slots=True)
class Metric:
    """`kind`: counter, gauge or histogram. `labels` without those of a histogram's buckets."""

    kind: str
    labels: tuple[str, ...]
    text: str


def _replica(kind: str, text: str, *labels: str) -> Metric:
    return Metric(kind, (*REPLICA_LABELS, *labels), text)


def _device(text: str) -> Metric:
    return Metric("gauge", ("node", "device"), text)


ENGINES: Final[dict[str, Metric]] = {
    "engine_step_latency_seconds": _replica(
        "histogram",
        "Time of an engine's step by what it computed: until the end of its update, from its start or, where steps "
        "overlap, from the end of the one before.",
        "stage",
    ),
    "scheduler_queue_delay_seconds": _replica(
        "histogram", "How long finished requests had waited inside the engine until first scheduled."
    ),
    "memory_fragmentation_ratio": _replica(
        "gauge",
        "kv_tail: unused part of what the held KV blocks fit, 0 under 64 held blocks. allocator: inactive split bytes "
        "of torch's reserved bytes, absent without CUDA and under 1 GiB reserved.",
        "kind",
    ),
    "gpu_mem_allocated_ratio": _replica(
        "gauge",
        "Part of a device's memory that the replica's processes hold, as the driver tells it. On the device `cpu` "
        "their proportional share of the host's memory.",
        "device",
    ),
    "model_switch_duration_seconds": _replica(
        "gauge",
        "Time at reduced capacity at the newest switch: from unrouting what ran on the device until this replica was "
        "ready. Absent where nothing was unrouted for it.",
    ),
    "sluice_engine_running": _replica("gauge", "Sequences that the engine computes."),
    "sluice_engine_waiting": _replica("gauge", "Requests that wait inside the engine."),
    "sluice_engine_kv_used_ratio": _replica("gauge", "KV blocks in use of all; cached free ones count as free."),
    "sluice_engine_kv_reusable_ratio": _replica("gauge", "KV blocks that are free but still hold a prefix, of all."),
    "sluice_engine_step_age_seconds": _replica("gauge", "Age of the newest step. An idle engine makes none."),
    "sluice_engine_preemptions_total": _replica("counter", "Sequences that lost their KV blocks and start again."),
    "sluice_engine_tokens_total": _replica("counter", "Tokens that steps computed, by kind.", "kind"),
    "sluice_engine_prefix_queries_tokens_total": _replica("counter", "Prompt tokens looked up in the prefix cache."),
    "sluice_engine_prefix_hits_tokens_total": _replica("counter", "Prompt tokens found in the prefix cache."),
    "sluice_engine_rss_bytes": _replica("gauge", "Sum of the resident sizes of the engine's processes."),
    "sluice_engine_major_faults_total": _replica("counter", "Page faults of the engine that had to read from disk."),
    "sluice_engine_steps_lost_total": _replica("counter", "Steps that the ring had overwritten before they were read."),
    "sluice_engine_telemetry_missing": _replica("gauge", "1 while an engine's steps are not seen, with why.", "reason"),
}  # fmt: skip
DEVICES: Final[dict[str, Metric]] = {
    "sluice_device_utilization_ratio": _device("Part of the time in which a kernel ran (NVML)."),
    "sluice_device_memory_activity_ratio": _device(
        "Part of the time in which device memory was read or written; not its bandwidth."
    ),
    "sluice_device_memory_total_bytes": _device("Memory of the device."),
    "sluice_device_memory_used_bytes": _device("Memory in use, by anybody."),
    "sluice_device_memory_ours_bytes": _device("Memory that this installation's engines hold."),
    "sluice_device_memory_foreign_bytes": _device("Memory that others hold."),
    "sluice_device_pcie_tx_bytes_per_second": _device("PCIe, from the device."),
    "sluice_device_pcie_rx_bytes_per_second": _device("PCIe, to the device."),
    "sluice_device_sm_clock_hertz": _device("Clock of the multiprocessors."),
    "sluice_device_memory_clock_hertz": _device("Clock of the memory."),
    "sluice_device_temperature_celsius": _device("Temperature of the device."),
    "sluice_device_power_watts": _device("Power drawn."),
    "sluice_device_throttled_ratio": _device("Part of the last second's readings in which clocks were held back."),
    "sluice_device_bandwidth_ratio": _device("Memory bandwidth in use (GPM; Hopper and later)."),
    "sluice_device_read_seconds": _device("The slowest single call to the driver in the last second."),
}  # fmt: skip
WORKER: Final[dict[str, Metric]] = {
    "sluice_samples_sent_total": Metric("counter", ("node",), "Samples of this node that went to telemetry."),
    "sluice_samples_dropped_total": Metric(
        "counter", ("node",), "Samples dropped because Redis did not take them."
    ),
    "sluice_sample_pass_seconds": Metric(
        "gauge", ("node",), "Thread time of the newest pass over all replicas."
    ),
    "sluice_engine_records_dropped_total": Metric(
        "counter", ("node",), "Times of finished requests that did not fit into a sample."
    ),
}
LOOPS: Final[dict[str, Metric]] = {
    "sluice_loop_passes_total": Metric("counter", ("loop",), "Passes of a loop that came to their end."),
    "sluice_loop_failures_total": Metric("counter", ("loop",), "Passes of a loop that failed."),
    "sluice_loop_pass_seconds": Metric("gauge", ("loop",), "Duration of a loop's newest pass."),
    "sluice_loop_age_seconds": Metric("gauge", ("loop",), "Time since a loop's newest pass ended."),
    "sluice_loop_lag_seconds": Metric(
        "gauge", (), "The longest that web's event loop was late in the last 10 s."
    ),
}
QUEUES: Final[dict[str, Metric]] = {
    "sluice_queue_depth": Metric("gauge", ("queue",), "Tasks that wait in a queue."),
    "sluice_stream_entries": Metric(
        "gauge", ("stream",), "Entries of a Redis stream; it is cut at its bound."
    ),
    "sluice_gateways": Metric("gauge", (), "Gateways that were heard of in the last 3 s."),
    "sluice_replicas": Metric("gauge", ("phase",), "Replicas by phase."),
}
TELEMETRY: Final[dict[str, Metric]] = {
    "sluice_stream_read_total": Metric("counter", ("stream",), "Entries of a Redis stream that telemetry read."),
    "sluice_stream_unreadable_total": Metric("counter", ("stream",), "What telemetry could not read of them."),
    "sluice_stream_cut_total": Metric("counter", (), "Entries that Redis cut off before they were read."),
    "sluice_facts_read_total": Metric("counter", (), "Facts of requests that telemetry read."),
    "sluice_samples_read_total": Metric("counter", (), "Readings of replicas, devices and processes that it read."),
    "sluice_store_batches_total": Metric("counter", (), "Batches that were stored."),
    "sluice_store_failures_total": Metric("counter", (), "Batches that PostgreSQL did not take; they are tried again."),
    "sluice_store_discarded_total": Metric("counter", (), "Single requests that PostgreSQL refused for good."),
    "sluice_store_seconds": Metric("gauge", (), "Duration of the newest batch."),
    "sluice_store_age_seconds": Metric("gauge", (), "Time since the newest batch was stored."),
    "sluice_open_messages_total": Metric("counter", (), "Messages with open cells to web processes that listened."),
}  # fmt: skip
PROCESS: Final[dict[str, Metric]] = {
    "process_resident_memory_bytes": Metric("gauge", (), "Resident size of this process."),
    "process_cpu_seconds_total": Metric("counter", (), "Processor time of this process."),
    "process_start_time_seconds": Metric("gauge", (), "Start of this process, as seconds since 1970."),
    "process_open_fds": Metric("gauge", (), "Open files and sockets of this process."),
    "process_threads": Metric("gauge", (), "Threads of this process."),
    "process_major_page_faults_total": Metric(
        "counter", (), "Page faults of this process that had to read from disk."
    ),
    "sluice_process_resident_memory_bytes": Metric(
        "gauge", ("node", "name"), "Resident size of a process of this installation on the node, by its name."
    ),
}
METRICS: Final[dict[str, Metric]] = {
    **ENGINES,
    **DEVICES,
    **WORKER,
    **LOOPS,
    **QUEUES,
    **TELEMETRY,
    **PROCESS,
}
