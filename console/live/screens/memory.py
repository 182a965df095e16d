"""Memory of the pool or of one model's part of it: room, devices as bands, KV caches, prefix hits per lane."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.memory_bands import device_row
from console.live.screens.rows import Tree
from console.templatetags.units import format_bytes, format_count, format_share, to_iso
from pool.domain.memory_map import MemoryOwner
from pool.queries.device_memory import DeviceSplit, PoolRoom, load_pool_memory
from pool.queries.memory_map import LanePrefix, PrefixHits, ReplicaMemory, load_memory

METER_UNITS = 100
TARGET_HIT_RATIO = 0.85
"""Of a lane that is hot; below, the page says so."""
HOT_REQUESTS = 100
"""In five minutes: fewer say nothing about a cache."""
USE_MARKS = ((0.95, tones.BAD), (0.70, tones.WARN))
"""Usual watermarks of KV use; what a model's gateways do at them is set there."""
TAIL_NOTICE, ALLOCATOR_NOTICE = 0.15, 0.15


def build_memory(argument: str = "") -> Tree:
    """`argument`: `model=<name>`, or empty for the pool. Room is always the pool's."""
    model = parse_qs(argument).get("model", [""])[-1]
    now = timezone.now()
    memory = load_memory(now=now)
    pool = load_pool_memory(memory.replicas, now=now)
    replicas = [row for row in memory.replicas if model in ("", row.model)]
    lanes = [row for row in memory.lanes if model in ("", row.model)]
    ours = {row.id for row in replicas}
    devices = [row for row in pool.devices if not model or ours.intersection(row.replicas)]
    return {
        "tiles": {**_room_cells(pool.room), **_use_cells(replicas, devices)},
        "devices": [device_row(row) for row in devices],
        "no_devices": not devices,
        "replicas": [replica_cells(row) for row in replicas],
        "no_replicas": not replicas,
        "count": format_count(len(replicas)),
        "lanes": [_lane_row(row) for row in lanes],
        "no_lanes": not lanes,
    }


def _room_cells(room: PoolRoom) -> Tree:
    left_out = (
        _("%(count)d devices left out: not usable, not measured lately, or their node takes nothing")
        % {"count": room.left_out}
        if room.left_out
        else ""
    )
    return {
        "fit": format_bytes(room.largest_fit_bytes),
        "fit_words": _("largest that fits on one device: %(device)s") % {"device": room.largest_device}
        if room.largest_device
        else _("no device can take a replica now"),
        "free": format_bytes(room.free_bytes),
        "free_words": left_out or _("on %(count)s devices") % {"count": format_count(room.devices)},
        "after": format_bytes(room.fit_after_bytes),
        "after_words": _move_words(room),
    }


def _move_words(room: PoolRoom) -> str:
    if not room.moves:
        return _("no move of a replica makes more room")
    moves = [
        _("%(replica)s (%(size)s) from %(source)s to %(target)s")
        % {
            "replica": move.replica,
            "size": format_bytes(move.size_bytes),
            "source": move.source,
            "target": move.target,
        }
        for move in room.moves
    ]
    return _("by moving %(moves)s") % {"moves": _(" and ").join(moves)}


def _use_cells(replicas: Sequence[ReplicaMemory], devices: Sequence[DeviceSplit]) -> Tree:
    sizes: dict[MemoryOwner, int] = {}
    for device in devices:
        for part in device.parts:
            sizes[part.owner] = sizes.get(part.owner, 0) + part.size_bytes
    told = [row for row in replicas if row.kv_used_ratio is not None and row.kv_blocks is not None]
    blocks = sum(row.kv_blocks or 0 for row in told)
    used = sum(row.kv_used_blocks or 0 for row in told)
    # An engine that tells blocks and not their bytes, as the simulated one, says nothing of either size.
    is_sized = any(row.kv_bytes is not None for row in told)
    preemptions = [row.preemptions for row in replicas if row.preemptions is not None]
    faults = [row.major_faults for row in replicas if row.major_faults is not None]
    return {
        "use": format_share(used / blocks if blocks else None),
        "use_words": _("%(told)s of %(all)s replicas tell; %(reusable)s reusable")
        % {
            "told": len(told),
            "all": len(replicas),
            "reusable": format_bytes(sizes.get(MemoryOwner.KV_REUSABLE, 0) if is_sized else None),
        },
        "tail": format_bytes(sizes.get(MemoryOwner.KV_TAIL, 0) if is_sized else None),
        "tail_words": _("held by requests, not filled by tokens"),
        "preemptions": format_count(sum(preemptions) if preemptions else None),
        "preemptions_words": _("in 5 min; major page faults: %(faults)s")
        % {"faults": format_count(sum(faults) if faults else None)},
        "preemptions_tone": tones.WARN if sum(preemptions) > 0 else "",
    }


def replica_cells(row: ReplicaMemory) -> Tree:
    blocks = row.kv_blocks or 0
    used = _share_of(row.kv_used_blocks, blocks)
    reusable = _share_of(row.kv_reusable_blocks, blocks)
    return {
        "id": row.id,
        "href": reverse("replica-memory", args=[row.id]),
        "model": row.model,
        "release": _("release %(number)d") % {"number": row.release},
        "lane": row.lane or _("all lanes"),
        "node": row.node or "",
        "sim": row.engine_kind == "sim",
        "phase": tones.word(row.phase),
        "tone": tones.replica_tone(row.phase),
        "use": format_share(row.kv_used_ratio),
        "use_tone": use_tone(row.kv_used_ratio),
        "w_used": f"{used * METER_UNITS:.1f}",
        "x_reusable": f"{used * METER_UNITS:.1f}",
        "w_reusable": f"{min(reusable, 1 - used) * METER_UNITS:.1f}",
        "blocks_words": _blocks_words(row),
        "tail": format_share(row.kv_tail_ratio),
        "tail_tone": _tone_above(row.kv_tail_ratio, TAIL_NOTICE),
        "allocator": format_share(row.allocator_ratio),
        "allocator_tone": _tone_above(row.allocator_ratio, ALLOCATOR_NOTICE),
        "engine_hits": format_share(row.prefix.engine_ratio),
        "gateway_hits": format_share(row.prefix.gateway_ratio),
        "preemptions": format_count(row.preemptions),
        "preemptions_tone": tones.WARN if row.preemptions else "",
        "rss": format_bytes(row.rss_bytes),
        "faults": format_count(row.major_faults),
        "told_at": to_iso(row.measured.at),
        "state": row.measured.state,
        "silent": row.measured.state == "absent",
        "stale": row.measured.state == "stale",
        "told": row.measured.state != "absent",
    }


def use_tone(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return next((tone for edge, tone in USE_MARKS if ratio >= edge), tones.OK)


def _tone_above(ratio: float | None, edge: float) -> str:
    return tones.WARN if ratio is not None and ratio >= edge else ""


def _share_of(part: float | None, whole: float) -> float:
    return min(1.0, part / whole) if part and whole else 0.0


def _blocks_words(row: ReplicaMemory) -> str:
    if row.kv_used_blocks is None or row.kv_blocks is None:
        return _("does not tell")
    return _("%(used)s of %(all)s blocks, %(reusable)s reusable") % {
        "used": format_count(row.kv_used_blocks),
        "all": format_count(row.kv_blocks),
        "reusable": format_count(row.kv_reusable_blocks),
    }


def _lane_row(row: LanePrefix) -> Tree:
    ratio = row.prefix.engine_ratio if row.prefix.engine_ratio is not None else row.prefix.gateway_ratio
    is_cold = ratio is not None and ratio < TARGET_HIT_RATIO and row.prefix.requests >= HOT_REQUESTS
    return {
        "id": f"{row.model}/{row.lane}".replace("/", ":"),
        "model": row.model,
        "lane": row.lane,
        "below": is_cold,
        **prefix_cells(row.prefix),
    }


def prefix_cells(prefix: PrefixHits) -> Tree:
    return {
        "engine": format_share(prefix.engine_ratio),
        "engine_words": _hit_words(prefix.engine_hits, prefix.engine_tokens),
        "gateway": format_share(prefix.gateway_ratio),
        "gateway_words": _hit_words(prefix.gateway_hits, prefix.gateway_tokens),
        "requests": format_count(prefix.requests),
    }


def _hit_words(hits: float | None, tokens: float | None) -> str:
    if hits is None or tokens is None:
        return ""
    return _("%(hits)s of %(tokens)s tokens") % {"hits": format_count(hits), "tokens": format_count(tokens)}
