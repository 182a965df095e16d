from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from console.live.cells import flatten
from console.live.screens.memory import build_memory, use_tone
from console.live.screens.memory_bands import owner_words
from console.live.screens.replica_memory import build_replica_memory
from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import Subject
from pool.models import Node, Replica
from pool.services.errors import NotFound
from pool.telemetry.store import add_cells
from tests import factories
from tests.factories import GIB
from tests.memory_seed import make_cell, store_sample

pytestmark = pytest.mark.django_db


@pytest.fixture
def subject(routing_state: None) -> Subject:
    now = timezone.now()
    node = factories.make_node()
    sizes: dict[str, Any] = {"total_bytes": 80 * GIB, "free_bytes": 28 * GIB, "ours_bytes": 52 * GIB}
    device = factories.make_device(node, measured_at=now, **sizes)
    release = factories.make_release(factories.make_model("chatty"))
    printed = {"printed": {"model_memory_bytes": 10 * GIB, "kv_cache_bytes": 40 * GIB}}
    factories.make_replica(release, node=node, id="r1", device_uuids=[device.uuid], figures=printed)
    return Subject("replica", "r1", node=node.name, model="chatty", release=1)


def tell(subject: Subject, **gauges: float) -> None:
    cell = make_cell(used=96, reusable=2, free=2, tail=0.2, gauges=gauges, counters={"preemptions": 2.0})
    store_sample(subject, timezone.now(), cell)


def test_an_empty_pool_has_dashes_and_no_zeros(routing_state: None) -> None:
    cells = flatten(build_memory())

    assert {
        name: cells[f"tiles/{name}"] for name in ("fit", "free", "after", "use", "tail", "preemptions")
    } == (dict.fromkeys(("fit", "free", "after", "use", "tail", "preemptions"), "—"))
    assert (cells["no_devices"], cells["no_replicas"], cells["no_lanes"]) == (True, True, True)


def test_blocks_of_an_unknown_size_are_no_zero_bytes(subject: Subject) -> None:
    Replica.objects.update(figures={})
    tell(subject)

    cells = flatten(build_memory())

    assert (cells["tiles/use"], cells["tiles/tail"]) == ("96 %", "—")
    assert cells["tiles/use_words"] == "1 of 1 replicas tell; — reusable"


def test_a_replica_that_does_not_tell_is_named_at_its_device(subject: Subject) -> None:
    cells = flatten(build_memory())
    device = "devices/node-a:cuda-node-a-0"

    assert cells[f"{device}/untold_words"] == "What is in the KV cache of r1 is not known."
    assert (cells[f"{device}/size_kv_unsplit"], cells[f"{device}/has_kv_used"]) == ("40.0 GiB", False)
    assert (cells["replicas/r1/use"], cells["replicas/r1/silent"]) == ("—", True)
    assert cells["tiles/tail"] == "—"


def test_a_bar_is_filled_to_its_end(subject: Subject) -> None:
    tell(subject)

    cells = flatten(build_memory())
    device = "devices/node-a:cuda-node-a-0"

    widths = [float(str(cells[f"{device}/w_{owner}"])) for owner in owner_words()]
    assert sum(widths) == pytest.approx(1000, abs=1)
    assert cells[f"{device}/size_kv_used"] == "30.7 GiB"
    assert cells[f"{device}/size_kv_tail"] == "7.68 GiB"
    assert (cells["tiles/use"], cells["replicas/r1/use_tone"]) == ("96 %", "bad")
    assert (cells["tiles/preemptions"], cells["tiles/preemptions_tone"]) == ("2", "warn")


def test_a_models_screen_leaves_out_the_others(subject: Subject) -> None:
    assert flatten(build_memory("model=other"))["no_devices"] is True
    assert flatten(build_memory("model=chatty"))["replicas#"] == ["r1"]


def test_a_cold_hot_lane_is_marked_and_an_idle_one_is_not(subject: Subject) -> None:
    tell(subject)
    for lane, requests in (("short", 500), ("long", 3)):
        key = SeriesKey("chatty", release=1, replica="r1", lane=lane)
        counts = {"requests": requests, "prompt_tokens": 1000, "cached_tokens": 100}
        add_cells({(key, timezone.now() - timedelta(seconds=3)): Cell(counts=counts)})

    cells = flatten(build_memory())

    assert (cells["lanes/chatty:short/below"], cells["lanes/chatty:long/below"]) == (True, False)
    assert (cells["lanes/chatty:short/gateway"], cells["lanes/chatty:short/engine"]) == ("10 %", "—")


@pytest.mark.parametrize(
    ("ratio", "tone"), [(None, ""), (0.0, "ok"), (0.69, "ok"), (0.7, "warn"), (0.949, "warn"), (0.95, "bad")]
)
def test_use_has_the_tone_of_its_watermark(ratio: float | None, tone: str) -> None:
    assert use_tone(ratio) == tone


def test_the_allocator_is_shown_where_it_is_told(subject: Subject) -> None:
    told = {"reserved_bytes": 4.0 * GIB, "allocated_bytes": 2.0 * GIB, "inactive_split_bytes": 1.0 * GIB}
    tell(subject, **told, allocator_ratio=0.25)

    cells = flatten(build_replica_memory("r1"))

    assert (cells["has_allocator"], cells["allocator_share"], cells["idle"]) == (True, "25 %", "1.00 GiB")
    assert (cells["w_allocated"], cells["x_split"], cells["w_split"]) == ("500.0", "500.0", "250.0")


@pytest.mark.parametrize(
    ("uuids", "kind", "word"),
    [
        (["cpu"], "vllm", "runs on a CPU"),
        (["gpu-1"], "sim", "simulated"),
        (["gpu-1"], "vllm", "no CUDA device"),
    ],
)
def test_an_absent_allocator_says_why(subject: Subject, uuids: list[str], kind: str, word: str) -> None:
    tell(subject)
    factories.make_runtime(Node.objects.get(), kind=kind)
    Replica.objects.update(device_uuids=uuids)

    cells = flatten(build_replica_memory("r1"))

    assert cells["no_allocator"] is True
    assert word in str(cells["allocator_absence"])


def test_a_silent_engines_allocator_is_unknown(subject: Subject) -> None:
    assert "told nothing lately" in str(flatten(build_replica_memory("r1"))["allocator_absence"])


def test_an_unknown_replica_is_not_found() -> None:
    with pytest.raises(NotFound):
        build_replica_memory("nosuch")
