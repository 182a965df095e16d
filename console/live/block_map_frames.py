"""Frames of a block map's socket: bytes for a map, text for everything else.

A map: length of the head (uint32, little-endian), the head as JSON, then states (a byte a block) and owners (uint16,
little-endian), each compressed by zlib as the worker wrote them; the head says how long each is.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from console.templatetags.units import to_iso
from pool.domain.block_map import STATES, BlockMap
from pool.queries.ages import Age

MOST_SHOWN: Final = 60
"""Segments in a frame, the largest first; the engine's answer may hold 2,000."""
_LENGTH: Final = struct.Struct("<I")


def encode_map(found: BlockMap, *, seq: int, scanned: Age) -> bytes:
    """`scanned`: of the engine's scan, not of its sending."""
    head = {
        "type": "map",
        "seq": seq,
        "at": to_iso(scanned.at),
        "stale": scanned.state != "measured",
        "blocks": found.blocks,
        "block_tokens": found.block_tokens,
        "names": STATES,
        "counts": [found.counts[name] for name in STATES],
        "runs": [[length, count] for length, count in found.free_runs.items()],
        "requests": [[one.id, one.blocks, one.tokens, one.tail_tokens] for one in found.requests],
        "lengths": [len(found.states), len(found.owners)],
    }
    content = json.dumps(head, separators=(",", ":")).encode()
    return _LENGTH.pack(len(content)) + content + found.states + found.owners


def encode_state(state: str, *, reason: str = "") -> str:
    """`waiting`: asked for and not there yet; `missing`: the engine does not tell; `unreachable`: Redis is silent."""
    return json.dumps({"type": "state", "state": state, "reason": reason}, ensure_ascii=False)


def encode_beat(seq: int) -> str:
    return json.dumps({"type": "beat", "seq": seq})


def encode_segments(content: bytes) -> str:
    """`segments`: [bytes, kind, [[bytes, is in use], …]] of the largest; `more`: how many are left out."""
    try:
        body = json.loads(content)
        if "segments" not in body:
            return encode_no_segments(str(body.get("absent") or "")[:500])
        rows = sorted(body["segments"], key=lambda one: -int(one["total_size"]))
        shown = [
            [int(one["total_size"]), str(one.get("kind") or "")[:20], _blocks_of(one["blocks"])]
            for one in rows[:MOST_SHOWN]
        ]
        more = len(rows) - len(shown) + int(body.get("left_out") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return encode_no_segments()
    return json.dumps({"type": "segments", "segments": shown, "more": more}, separators=(",", ":"))


def _blocks_of(blocks: list[list[Any]]) -> list[list[int]]:
    return [[int(size), int(str(state).startswith("active"))] for size, state in blocks]


def encode_no_segments(reason: str = "") -> str:
    """Empty: the engine gave no answer in time."""
    return json.dumps({"type": "segments", "absent": reason, "segments": []}, ensure_ascii=False)
