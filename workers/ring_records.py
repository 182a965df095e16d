"""What a step ring holds, as values, and how each is made from its bytes. The file itself: `engine_ring.py`."""

from __future__ import annotations

import os
import re
import struct
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from workers.plugin.sluice_engine import ring

# A file of more would be no ring of ours; also bounds what one reading holds in memory.
MAX_FILE_BYTES: Final = 256 * 2**20
_CHAT = re.compile(r"(?:\d+_)?chatcmpl-(.+)-[0-9a-f]{8}")
_TEXT = re.compile(r"(?:\d+_)?cmpl-(.+)-\d+-[0-9a-f]{8}")


class Step(NamedTuple):
    """One step. `at_s` is its end on CLOCK_MONOTONIC. `busy_s` adds up to the time that passed, also where steps
    overlap; the three parts do not then. `kind`: prefill, decode or mixed. `execute_s` holds the model's run and the
    wait for its result."""

    sequence: int
    at_s: float
    kind: str
    schedule_s: float
    execute_s: float
    update_s: float
    busy_s: float
    prefill_tokens: int
    decode_tokens: int
    prefill_sequences: int
    decode_sequences: int
    running: int
    waiting: int
    preempted: int
    cached_tokens: int
    used_blocks: int
    finished: int


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """`request_id`: as the gateway sent it. Times are None where the engine did not get so far or did not say.
    `outcome`: done, aborted or failed."""

    sequence: int
    request_id: str
    at_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    preemptions: int
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    outcome: str


@dataclass(frozen=True, slots=True)
class BlockOwner:
    """`tail_tokens`: that fit into its blocks and are not used; None where it cannot be told."""

    request_id: str
    blocks: int
    tokens: int
    tail_tokens: int | None


@dataclass(frozen=True)
class BlockMap:
    """`states`: a byte for each block (`ring.NULL` …). `owners`: 16 bits little-endian for each, an index into
    `requests`, `ring.NO_OWNER` = none. The scan began at `first_step` and ended at `last_step`; equal = one moment."""

    at_s: float
    first_step: int
    last_step: int
    block_size_tokens: int
    states: bytes
    owners: bytes
    requests: tuple[BlockOwner, ...]

    @property
    def used_blocks(self) -> int:
        """With the shared ones."""
        return self.states.count(ring.USED) + self.shared_blocks

    @property
    def shared_blocks(self) -> int:
        return self.states.count(ring.SHARED)

    @property
    def free_blocks(self) -> int:
        """Without the reusable ones."""
        return self.states.count(ring.FREE)

    @property
    def reusable_blocks(self) -> int:
        return self.states.count(ring.REUSABLE)

    @property
    def held_tokens(self) -> int:
        return self.used_blocks * self.block_size_tokens

    @property
    def tail_tokens(self) -> int | None:
        known = [owner.tail_tokens for owner in self.requests if owner.tail_tokens is not None]
        return sum(known) if len(known) == len(self.requests) else None

    @cached_property
    def runs_of_free(self) -> dict[int, int]:
        """How many runs of neighbouring blocks that can be given away (free or reusable) there are, by length."""
        runs: dict[int, int] = {}
        for run in _FREE_RUNS.findall(self.states):
            runs[len(run)] = runs.get(len(run), 0) + 1
        return runs

    @property
    def largest_free_run_blocks(self) -> int:
        return max(self.runs_of_free, default=0)


_FREE_RUNS = re.compile(bytes([0x5B, ring.FREE, ring.REUSABLE, 0x5D, 0x2B]))


@dataclass(frozen=True, slots=True)
class Allocator:
    """Torch's caching allocator in the engine's processes, in bytes. `ratio`: inactive split ÷ reserved."""

    at_s: float
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    active_bytes: int
    retries: int
    out_of_memory: int

    @property
    def ratio(self) -> float | None:
        return self.inactive_split_bytes / self.reserved_bytes if self.reserved_bytes else None


@dataclass(frozen=True, slots=True)
class OwnCost:
    """What the plug-in itself took: thread time, and the time of all steps, both in seconds since the start."""

    own_s: float
    scan_s: float
    step_s: float
    scans: int
    failures: int

    @property
    def ratio(self) -> float | None:
        return self.own_s / self.step_s if self.step_s else None


@dataclass(frozen=True, slots=True)
class Head:
    """The unchanging part of a ring. `kv_bytes` and `max_sequences` are None where the engine did not say."""

    pid: int
    started_s: float
    step_slots: int
    finished_slots: int
    blocks: int
    block_size_tokens: int
    request_rows: int
    area_bytes: int
    simulated: bool
    tail_known: bool
    max_sequences: int | None
    kv_bytes: int | None
    engine: str
    areas: ring.Areas = field(repr=False)


def clean_request_id(engine_id: str) -> str:
    """The id that the client sent in `x-request-id`, out of the engine's own id of a sequence (vLLM 0.32).

    `chatcmpl-<id>-<8 hex>`, `cmpl-<id>-<number of the prompt>-<8 hex>`, with `<n>_` before for one of n choices.
    """
    found = _CHAT.fullmatch(engine_id) or _TEXT.fullmatch(engine_id)
    return found[1] if found else engine_id


def read_head(content: bytes, stat: os.stat_result) -> tuple[Head | None, str]:
    if len(content) < ring.HEADER.size:
        return None, "The step ring is cut."
    fields = ring.HEADER.unpack(content)
    (
        magic,
        version,
        pid,
        started_ns,
        _,
        steps,
        finished,
        blocks,
        size,
        rows,
        area,
        flags,
        longest,
        kv,
        name,
    ) = fields
    if magic != ring.MAGIC:
        return None, "The file in the place of the step ring is none."
    if version != ring.LAYOUT_VERSION:
        return None, f"The step ring has layout {version}; this worker reads {ring.LAYOUT_VERSION}."
    areas = ring.lay_out(steps=steps, finished=finished, area_bytes=area)
    fits = not blocks or area == ring.map_bytes(blocks, rows)
    if not (steps and finished and fits and areas.end <= stat.st_size <= MAX_FILE_BYTES):
        return None, "The step ring's header does not fit its file."
    simulated, tail_known = bool(flags & ring.SIMULATED), not flags & ring.TAIL_UNKNOWN
    head = Head(
        pid, started_ns / 1e9, steps, finished, blocks, size, rows, area, simulated, tail_known,
        longest or None, kv or None, _text(name), areas,
    )  # fmt: skip
    return head, ""


def make_step(row: tuple[int, ...]) -> Step:
    sequence, started, schedule, execute, update, busy, kind, *counts = row
    at_s = (started + schedule + execute + update) / 1e9
    parts = (schedule / 1e9, execute / 1e9, update / 1e9, busy / 1e9)
    return Step(sequence, at_s, ring.KINDS.get(kind, "mixed"), *parts, *counts)


def make_finished(row: tuple[int, ...]) -> FinishedRequest:
    sequence, at_ns, queue, prefill, decode, preemptions, prompt, cached, output, outcome, name = row
    return FinishedRequest(
        sequence=sequence,
        request_id=clean_request_id(_text(name)),
        at_s=at_ns / 1e9,
        queue_s=_seconds(queue),
        prefill_s=_seconds(prefill),
        decode_s=_seconds(decode),
        preemptions=preemptions,
        prompt_tokens=prompt,
        cached_tokens=None if cached < 0 else cached,
        output_tokens=output,
        outcome=ring.OUTCOMES.get(outcome, "failed"),
    )


def make_allocator(content: bytes) -> Allocator:
    _, at_ns, *counts = ring.ALLOCATOR.unpack_from(content)
    return Allocator(at_ns / 1e9, *counts)


def sum_allocators(parts: list[Allocator | None]) -> Allocator | None:
    """None unless every part is known: a sum of some would look like less."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Allocator(
        min(part.at_s for part in known),
        sum(part.allocated_bytes for part in known),
        sum(part.reserved_bytes for part in known),
        sum(part.inactive_split_bytes for part in known),
        sum(part.active_bytes for part in known),
        sum(part.retries for part in known),
        sum(part.out_of_memory for part in known),
    )


def make_owners(content: bytes) -> tuple[BlockOwner, ...]:
    return tuple(
        BlockOwner(clean_request_id(_text(name)), held, tokens, None if tail < 0 else tail)
        for held, tokens, tail, name in ring.MAP_REQUEST.iter_unpack(content)
    )


def _seconds(nanoseconds: int) -> float | None:
    return None if nanoseconds < 0 else nanoseconds / 1e9


def _text(content: object) -> str:
    return bytes(content).rstrip(b"\0").decode(errors="replace") if isinstance(content, bytes) else ""


def is_whole(content: bytes) -> bool:
    body, checksum = content[: -ring.CHECKSUM.size], content[-ring.CHECKSUM.size :]
    return len(checksum) == ring.CHECKSUM.size and ring.CHECKSUM.unpack(checksum)[0] == zlib.crc32(body)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where records of one kind lie."""

    start: int
    layout: struct.Struct
    size: int
    count: int
