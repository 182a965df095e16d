"""A device's memory as bands: one SVG bar of 1000 units, and a legend that names every part with its size."""

from __future__ import annotations

from django.utils.translation import gettext as _

from console.live.screens.rows import Tree
from console.templatetags.units import format_bytes, format_gib, to_iso
from pool.domain.memory_map import MemoryOwner
from pool.queries.device_memory import DeviceSplit

BAR_UNITS = 1000
ORDER = tuple(MemoryOwner)
"""As they lie in the bar, from what works to what is free."""


def owner_words() -> dict[str, str]:
    """For templates, in the bar's order."""
    return {owner.value: _word(owner) for owner in ORDER}


def device_row(row: DeviceSplit) -> Tree:
    sizes = dict.fromkeys(ORDER, 0)
    for part in row.parts:
        sizes[part.owner] += part.size_bytes
    total = row.total_bytes or 0
    cells: Tree = {
        "id": f"{row.node}:{row.uuid}",
        "title": _("%(node)s · CPU") % {"node": row.node}
        if row.kind == "cpu"
        else _("%(node)s · GPU %(index)d") % {"node": row.node, "index": row.index},
        "name": row.name,
        "broken": not row.usable,
        "reason": row.reason_text,
        "known": row.total_bytes is not None,
        "unknown": row.total_bytes is None,
        "stale": row.measured.state == "stale",
        "used_gib": format_gib(None if row.free_bytes is None else total - row.free_bytes),
        "total_gib": format_gib(row.total_bytes),
        "measured_at": to_iso(row.measured.at),
        "filled": row.filled.at is not None,
        "filled_at": to_iso(row.filled.at),
        "has_untold": bool(row.untold),
        "untold_words": _("What is in the KV cache of %(names)s is not known.")
        % {"names": ", ".join(row.untold)},
        "bar_title": _bar_title(row),
    }
    left = 0.0
    for owner in ORDER:
        width = sizes[owner] / total * BAR_UNITS if total else 0.0
        cells[f"x_{owner}"] = f"{left:.1f}"
        cells[f"w_{owner}"] = f"{width:.1f}"
        cells[f"has_{owner}"] = sizes[owner] > 0
        cells[f"size_{owner}"] = format_bytes(sizes[owner])
        left += width
    return cells


def _bar_title(row: DeviceSplit) -> str:
    if row.total_bytes is None:
        return _("not measured yet")
    return ", ".join(f"{_word(part.owner)} {format_bytes(part.size_bytes)}" for part in row.parts)


def _word(owner: MemoryOwner) -> str:
    return {
        MemoryOwner.WEIGHTS: _("weights"),
        MemoryOwner.KV_USED: _("KV in use"),
        MemoryOwner.KV_TAIL: _("tail waste"),
        MemoryOwner.KV_REUSABLE: _("KV reusable"),
        MemoryOwner.KV_UNSPLIT: _("KV cache, not split"),
        MemoryOwner.UNUSED: _("reserved, unused"),
        MemoryOwner.ENGINE_OTHER: _("engine, other"),
        MemoryOwner.PROMISED: _("promised to a start"),
        MemoryOwner.FOREIGN: _("foreign"),
        MemoryOwner.FREE: _("free"),
    }[owner]
