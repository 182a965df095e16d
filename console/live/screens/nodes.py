"""The nodes with devices and runtimes, and what an operator may ask of them."""

from __future__ import annotations

from django.utils import timezone
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.devices import node_row
from console.live.screens.rows import Tree
from console.templatetags.units import UNKNOWN, format_count, to_iso
from pool.queries.nodes import NodeRow, RuntimeRow, list_nodes

LISTED = 6


def build_nodes(argument: str = "") -> Tree:
    nodes = list_nodes(now=timezone.now())
    return {
        "nodes": [detailed_node(row) for row in nodes],
        "no_nodes": not nodes,
        "count": format_count(len(nodes)),
    }


def detailed_node(row: NodeRow) -> Tree:
    return {
        **node_row(row),
        "host": row.host or UNKNOWN,
        "zone": row.zone or UNKNOWN,
        "label_words": ", ".join(f"{name}={value}" for name, value in sorted(row.labels.items())) or UNKNOWN,
        "lease_until": to_iso(row.lease_until),
        "joined_at": to_iso(row.created_at),
        "runtimes": [runtime_row(runtime) for runtime in row.runtimes],
        "no_runtimes": not row.runtimes,
    }


def runtime_row(row: RuntimeRow) -> Tree:
    return {
        "id": row.name,
        "kind": row.kind,
        "sim": row.kind == "sim",
        "version": row.version or UNKNOWN,
        "tone": tones.OK if row.usable else tones.BAD,
        "state": _("usable") if row.usable else _("unusable"),
        "reason": row.reason_text,
        "quantizations": _listed(row.quantizations),
        "kv_dtypes": _listed(row.kv_cache_dtypes),
        "block_sizes": _listed(tuple(str(size) for size in row.block_sizes)),
        "probed_at": to_iso(row.probed_at),
    }


def _listed(names: tuple[str, ...]) -> str:
    """The first few and how many more: a probe finds two dozen quantizations."""
    if not names:
        return UNKNOWN
    shown = ", ".join(names[:LISTED])
    return (
        shown
        if len(names) <= LISTED
        else _("%(shown)s and %(more)d more")
        % {
            "shown": shown,
            "more": len(names) - LISTED,
        }
    )
