"""Memory of one replica: its KV cache, torch's allocator or why there is none, and what its process took."""

from __future__ import annotations

from django.utils import timezone
from django.utils.translation import gettext as _

from console.live.screens.memory import prefix_cells, replica_cells
from console.live.screens.rows import Tree
from console.templatetags.units import UNKNOWN, format_bytes, format_count, format_share
from pool.queries.memory_map import ReplicaMemory, find_replica_memory
from pool.services.errors import not_found

BAR_UNITS = 1000


def build_replica_memory(replica_id: str) -> Tree:
    row = find_replica_memory(replica_id, now=timezone.now())
    if row is None:
        raise not_found("replica", replica_id)
    cells = replica_cells(row)
    return {
        **cells,
        "blocks_count": str(round(row.kv_blocks)) if row.kv_blocks else "",
        "shared": format_count(row.kv_shared_blocks),
        "free_words": _free_words(row),
        "tail_words": _tail_words(row),
        "kv_bytes": format_bytes(row.kv_bytes),
        "weights": format_bytes(row.weights_bytes),
        **{f"prefix_{name}": words for name, words in prefix_cells(row.prefix).items()},
        **_allocator_cells(row),
    }


def _free_words(row: ReplicaMemory) -> str:
    if row.largest_free_run_blocks is None:
        return _("longest run of free blocks: unknown")
    return _("longest run of free blocks: %(count)s") % {"count": format_count(row.largest_free_run_blocks)}


def _tail_words(row: ReplicaMemory) -> str:
    if row.kv_tail_tokens is None or row.kv_held_tokens is None:
        return _("the engine does not tell")
    return _("%(tail)s of %(held)s tokens") % {
        "tail": format_count(row.kv_tail_tokens),
        "held": format_count(row.kv_held_tokens),
    }


def _allocator_cells(row: ReplicaMemory) -> Tree:
    reserved, allocated, split = row.reserved_bytes, row.allocated_bytes, row.inactive_split_bytes
    is_told = reserved is not None and allocated is not None
    whole = reserved or 0.0
    inside, broken = min(allocated or 0.0, whole), min(split or 0.0, max(0.0, whole - (allocated or 0.0)))
    return {
        "has_allocator": is_told,
        "no_allocator": not is_told,
        "allocator_absence": _absence_words(row),
        "reserved": format_bytes(reserved),
        "allocated": format_bytes(allocated),
        "split": format_bytes(split),
        "idle": format_bytes(whole - inside - broken if is_told else None),
        "w_allocated": f"{_part(inside, whole):.1f}",
        "x_split": f"{_part(inside, whole):.1f}",
        "w_split": f"{_part(broken, whole):.1f}",
        "allocator_share": format_share(row.allocator_ratio) if row.allocator_ratio is not None else UNKNOWN,
        "allocator_small": is_told and row.allocator_ratio is None,
    }


def _part(size: float, whole: float) -> float:
    return size / whole * BAR_UNITS if whole else 0.0


def _absence_words(row: ReplicaMemory) -> str:
    if row.engine_kind == "sim":
        return _("A simulated engine has no allocator.")
    if any(uuid.startswith("cpu") for uuid in row.device_uuids):
        return _("This engine runs on a CPU. Torch's caching allocator is of CUDA devices only.")
    if row.measured.state == "absent":
        return _("The engine has told nothing lately, so nothing is known of its allocator.")
    return _(
        "The engine's process does not tell of an allocator: it holds no CUDA device, or its devices belong to "
        "processes of its own."
    )
