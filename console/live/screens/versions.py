"""Versions of a model: facts from the config in words, presence on each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.rows import Tree
from console.templatetags.units import UNKNOWN, format_bytes, format_count, format_short, to_iso
from pool.queries.models import PresenceRow, VersionRow


def version_row(row: VersionRow) -> Tree:
    facts: Mapping[str, Any] = row.facts or {}
    return {
        "id": row.name,
        "source": row.source,
        "revision": row.revision,
        "retired": row.retired_at is not None,
        "usable": row.retired_at is None,
        "remote_code": row.remote_code_approved,
        "created_at": to_iso(row.created_at),
        "parameters": format_short(facts.get("parameters")),
        "context": format_count(facts.get("context_tokens")),
        "dtype": _dtype(facts),
        "size": format_bytes(_size_bytes(row)),
        "architecture": facts.get("architecture") or UNKNOWN,
        "shape": _shape(facts),
        "template": _template_words(facts),
        "presences": [_presence(presence) for presence in row.presences],
        "no_presences": not row.presences,
    }


def _presence(row: PresenceRow) -> Tree:
    return {
        "id": row.node,
        "phase": tones.word(row.phase),
        "tone": tones.presence_tone(row.phase),
        "reason": row.reason_text or row.reason.replace("_", " "),
        "checking": row.full_check_wanted,
        "verified_at": to_iso(row.verified_at),
    }


def _size_bytes(row: VersionRow) -> int | None:
    """Of all files of the manifest; else of the weights alone."""
    files = (row.manifest or {}).get("files")
    sizes = [
        size
        for entry in (
            files.values() if isinstance(files, Mapping) else files if isinstance(files, list) else ()
        )
        if isinstance(entry, Mapping) and isinstance(size := entry.get("size", entry.get("size_bytes")), int)
    ]
    if sizes:
        return sum(sizes)
    weights = (row.facts or {}).get("weight_bytes")
    return weights if isinstance(weights, int) else None


def _dtype(facts: Mapping[str, Any]) -> str:
    dtype, quantization = facts.get("dtype"), facts.get("quantization")
    return f"{dtype}, {quantization}" if dtype and quantization else str(dtype or UNKNOWN)


def _shape(facts: Mapping[str, Any]) -> str:
    if not facts.get("layers"):
        return UNKNOWN
    return _("%(layers)d layers, %(heads)s heads, %(kv)s KV heads of %(size)s") % {
        "layers": facts["layers"],
        "heads": facts.get("heads", UNKNOWN),
        "kv": facts.get("kv_heads", UNKNOWN),
        "size": facts.get("head_size", UNKNOWN),
    }


def _template_words(facts: Mapping[str, Any]) -> str:
    known = facts.get("has_chat_template")
    if not isinstance(known, bool):
        return UNKNOWN
    return _("chat template present") if known else _("no chat template: completions only")
