"""The block map of one KV cache as a worker writes it for those who watch: checked, bounded, no prompt's text."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pool.domain.errors import PoolError

STATES: Final = ("null", "free", "reusable", "used", "shared")
"""By number. `null`: the one block that the engine never gives out; `shared`: used by more than one request."""
MOST_BLOCKS: Final = 262_144
MOST_REQUESTS: Final = 4096
MOST_RUNS: Final = 64
LONGEST_ID: Final = 128
NOBODY: Final = 65_535
_OWNER_BYTES: Final = 2


class BadBlockMap(PoolError):
    """A worker wrote what this version does not read."""

    code: ClassVar[str] = "bad_block_map"


@dataclass(frozen=True)
class BlockOwner:
    """A request that holds blocks. `tail_tokens`: what its last block could still take; None: it cannot be told."""

    id: str
    blocks: int
    tokens: int
    tail_tokens: int | None


@dataclass(frozen=True)
class BlockMap:
    """`states` and `owners` are compressed by zlib as they came: they go on to browsers as they are."""

    at_ms: int
    """When it was sent, on the clock of Redis."""
    age_s: float | None
    """Of the engine's scan when it was sent; None: not told."""
    blocks: int
    block_tokens: int
    counts: Mapping[str, int]
    """Blocks by state; all of `STATES`."""
    states: bytes
    owners: bytes
    requests: tuple[BlockOwner, ...]
    free_runs: Mapping[int, int]
    """Length of a run of free or reusable blocks (a power of two: at least so long, below the next) → how many."""


def read_block_map(content: bytes) -> BlockMap:
    """Raises BadBlockMap for what is no map, is larger than any engine's, or contradicts itself."""
    try:
        body = json.loads(content)
        states, owners = _packed(body["states"]), _packed(body["owners"])
        numbers = _inflate(states, MOST_BLOCKS)
        requests = tuple(_owner(row) for row in body["requests"][:MOST_REQUESTS])
        if len(_inflate(owners, MOST_BLOCKS * _OWNER_BYTES)) != len(numbers) * _OWNER_BYTES:
            raise ValueError("owners of another number of blocks")
        if numbers and max(numbers) >= len(STATES):
            raise ValueError("an unknown state")
        return BlockMap(
            at_ms=int(body["at_ms"]),
            age_s=None if body.get("age_s") is None else max(0.0, float(body["age_s"])),
            blocks=len(numbers),
            block_tokens=int(body["block_size"]),
            counts={name: numbers.count(number) for number, name in enumerate(STATES)},
            states=states,
            owners=owners,
            requests=requests,
            free_runs=_runs(body.get("runs_of_free") or {}),
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zlib.error,
        RecursionError,
        OverflowError,
    ) as exc:
        raise BadBlockMap(
            "The worker's block map cannot be read. Are web and worker of the same version?"
        ) from exc


def _packed(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError("no base64") from exc


def _inflate(content: bytes, limit: int) -> bytes:
    reader = zlib.decompressobj()
    found = reader.decompress(content, limit + 1)
    if len(found) > limit or not reader.eof:
        raise ValueError("cut, or more blocks than an engine has")
    return found


def _owner(row: Mapping[str, Any]) -> BlockOwner:
    return BlockOwner(
        id=str(row["id"])[:LONGEST_ID],
        blocks=int(row["blocks"]),
        tokens=int(row["tokens"]),
        tail_tokens=None if row["tail_tokens"] is None else int(row["tail_tokens"]),
    )


def _runs(given: Mapping[str, Any]) -> dict[int, int]:
    """By powers of two, whatever the worker counts by: a histogram of lengths reads as one glance."""
    runs: dict[int, int] = {}
    for length, count in list(given.items())[: MOST_BLOCKS // 2]:
        if int(length) > 0 and int(count) > 0:
            edge = 1 << (int(length).bit_length() - 1)
            runs[edge] = runs.get(edge, 0) + int(count)
    return dict(sorted(runs.items())[:MOST_RUNS])


def pack_block_map(
    *,
    at_ms: int,
    age_s: float,
    block_tokens: int,
    states: bytes,
    owners: bytes,
    requests: tuple[BlockOwner, ...],
    free_runs: Mapping[int, int],
) -> bytes:
    """What `read_block_map` reads. `states`: a byte a block; `owners`: two a block, little-endian, NOBODY for none."""
    body = {
        "at_ms": at_ms,
        "age_s": age_s,
        "block_size": block_tokens,
        "states": base64.b64encode(zlib.compress(states, 1)).decode(),
        "owners": base64.b64encode(zlib.compress(owners, 1)).decode(),
        "requests": [
            {"id": one.id, "blocks": one.blocks, "tokens": one.tokens, "tail_tokens": one.tail_tokens}
            for one in requests
        ],
        "runs_of_free": {str(length): count for length, count in free_runs.items()},
    }
    return json.dumps(body, separators=(",", ":")).encode()
