"""Devices with their memory as bands: GiB in numbers, shares as widths of an SVG bar of 1000 units."""

from __future__ import annotations

from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.rows import Tree
from console.templatetags.units import format_bytes, format_gib, to_iso
from pool.queries.memory_bands import BandOwner, DeviceBands
from pool.queries.nodes import DeviceRow, NodeRow

BAR_UNITS = 1000
ORDER = (
    BandOwner.WEIGHTS,
    BandOwner.KV_CACHE,
    BandOwner.ENGINE_OTHER,
    BandOwner.RESERVED,
    BandOwner.FOREIGN,
    BandOwner.FREE,
)


def device_row(row: DeviceRow) -> Tree:
    tone, state = _device_state(row)
    return {
        "id": row.uuid,
        "title": device_title(row),
        "name": row.name,
        "tone": tone,
        "state": state,
        "reason": row.reason_text,
        "broken": not row.usable,
        "bar_title": _bar_title(row.memory),
        **memory_cells(row.memory),
    }


def device_title(row: DeviceRow) -> str:
    return _("CPU") if row.kind == "cpu" else _("GPU %(index)d") % {"index": row.index}


def memory_cells(memory: DeviceBands) -> Tree:
    sizes = dict.fromkeys(ORDER, 0)
    for band in memory.bands:
        sizes[band.owner] += band.size_bytes
    total = memory.total_bytes or 0
    cells: Tree = {
        "known": memory.total_bytes is not None,
        "unknown": memory.total_bytes is None,
        "used_gib": format_gib(None if memory.free_bytes is None else total - memory.free_bytes),
        "total_gib": format_gib(memory.total_bytes),
        "measured_at": to_iso(memory.measured.at),
        "stale": memory.measured.state == "stale",
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


def _bar_title(memory: DeviceBands) -> str:
    if memory.total_bytes is None:
        return _("not measured yet")
    parts = [f"{band_words(band.owner)} {format_bytes(band.size_bytes)}" for band in memory.bands]
    return ", ".join(parts)


def band_words(owner: BandOwner) -> str:
    return {
        BandOwner.WEIGHTS: _("weights"),
        BandOwner.KV_CACHE: _("KV cache"),
        BandOwner.ENGINE_OTHER: _("engine, other"),
        BandOwner.RESERVED: _("reserved by a start"),
        BandOwner.FOREIGN: _("foreign"),
        BandOwner.FREE: _("free"),
    }[owner]


def _device_state(row: DeviceRow) -> tuple[str, str]:
    if not row.usable:
        return tones.BAD, _("unusable")
    if row.memory.measured.state == "absent":
        return tones.IDLE, _("not measured")
    if row.memory.measured.state == "stale":
        return tones.WARN, _("stale")
    return tones.OK, _("usable")


def node_row(row: NodeRow) -> Tree:
    return {
        "id": row.name,
        "href": "#" + row.name,
        "phase": tones.word(row.phase),
        "tone": tones.node_tone(row.phase),
        "reason": row.reason_text or row.reason.replace("_", " "),
        "since": to_iso(row.since),
        "zone": row.zone,
        "address": row.address,
        "lease_at": to_iso(row.lease.at),
        "silent": row.lease.state != "measured",
        "wish": row.wish,
        "odd": row.phase in ("unreachable", "replaced") and bool(row.reason_text or row.reason),
        "can_cordon": row.wish == "serve",
        "can_drain": row.wish != "drain",
        "can_return": row.wish != "serve",
        "replicas": len(row.replicas),
        "replica_words": _replica_words(len(row.replicas)),
        "devices": [device_row(device) for device in row.devices],
    }


def _replica_words(count: int) -> str:
    if count == 0:
        return _("no replicas")
    return _("1 replica") if count == 1 else _("%(count)d replicas") % {"count": count}
