"""The step ring: a memory-mapped file that an engine writes and its node's worker reads, also when the engine hangs.

Layout and writer; the reader is `workers/engine_ring.py`. Standard library only: it is imported by an engine and,
as `workers.plugin.sluice_engine.ring`, by the worker and the simulated engine. Writing takes no lock and no system
call: each record carries its sequence number and a checksum, so a torn read is seen by its reader. Times are
nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

MAGIC: Final = b"SLUICERG"
LAYOUT_VERSION: Final = 1
FILE_NAME: Final = "steps.ring"
SEGMENTS_NAME: Final = "segments.json"
RANK_NAME: Final = "allocator.{}.ring"
RANK_SEGMENTS_NAME: Final = "segments.{}.json"
RING_VARIABLE: Final = "SLUICE_ENGINE_RING"

PAGE_BYTES: Final = 4096
HEADER: Final = struct.Struct("<8sIIQQIIIIIIIIQ32s")
"""Magic, layout version, pid, start (monotonic ns), start (wall µs), step slots, finished slots, blocks (with the null
block), block size in tokens, request rows of a map, bytes of a map area, flags, longest batch, KV cache bytes (0 = not
known), engine."""
SIMULATED: Final = 1
TAIL_UNKNOWN: Final = 2
"""Flag: what a request wastes in its last block cannot be told (several groups of KV caches, or sliding windows)."""

# Single words that are stored whole. The first ones are the writer's, the last ones the reader's.
WORDS_OFFSET: Final = 512
WORD_COUNT: Final = 32
(
    STEPS, FINISHED, MAPS, IN_STEP_NS, OWN_NS, STEP_NS, FAILURES, ALLOCATORS, SCAN_NS, SCANS,
    RUNNING, WAITING, USED_BLOCKS,
) = range(13)  # fmt: skip
"""Newest sequence numbers; start of the step in progress (0 = none); thread time of the plug-in itself and time of all
steps; failures of the hook; newest allocator record; thread time and number of scans of the blocks (part of OWN_NS);
what runs, waits and is used now, also after clean-ups that are no step."""
WATCHED_UNTIL_NS, SEGMENTS_WISH = 24, 25
"""Written by the reader: until when somebody looks at the map; how often allocator segments were asked for."""
REASON_OFFSET: Final = 1024
REASON_BYTES: Final = 512
_REASON_HEAD = struct.Struct("<IH")

PREFILL, DECODE, MIXED = 1, 2, 3
KINDS: Final = {PREFILL: "prefill", DECODE: "decode", MIXED: "mixed"}
DONE, ABORTED, FAILED = 1, 2, 3
OUTCOMES: Final = {DONE: "done", ABORTED: "aborted", FAILED: "failed"}
NULL, FREE, REUSABLE, USED, SHARED = range(5)
NO_OWNER: Final = 0xFFFF

STEP: Final = struct.Struct("<QQQQQQB3xIIIIIIIIII")
FINISHED_RECORD: Final = struct.Struct("<QQqqqIIiIB3x100s")
ALLOCATOR: Final = struct.Struct("<QQQQQQQQ")
MAP_HEAD: Final = struct.Struct("<QQQQIII")
"""Sequence, when (ns), first and last step of the scan (equal = of one moment), blocks, requests, checksum of both."""
MAP_REQUEST: Final = struct.Struct("<IIi100s")
"""Blocks, tokens, unused tokens of its blocks (-1 = not known), the engine's id of the request."""
CHECKSUM: Final = struct.Struct("<I")
ID_BYTES: Final = 100

STEP_SLOTS: Final = 2048
FINISHED_SLOTS: Final = 1024
# A map names at most so many requests; blocks of further ones count as used without an owner.
REQUEST_ROWS: Final = 1024
MAX_BLOCKS: Final = 4_000_000


class StepFields(NamedTuple):
    """One step of an engine. `busy_ns`: its end minus the later of its start and the end of the step before, so that
    overlapping steps of an asynchronous engine add up to the time that passed."""

    started_ns: int
    schedule_ns: int
    execute_ns: int
    update_ns: int
    busy_ns: int
    kind: int
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


class FinishedFields(NamedTuple):
    """One request that left the engine. Times in ns and `cached_tokens` are -1 where they are not known."""

    at_ns: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: int
    request_id: str


class AllocatorFields(NamedTuple):
    """Torch's caching allocator in bytes; the meaning of each is that of `torch.cuda.memory_stats`."""

    at_ns: int
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    active_bytes: int
    retries: int
    out_of_memory: int


class MapRequest(NamedTuple):
    request_id: str
    blocks: int
    tokens: int
    tail_tokens: int


class Areas(NamedTuple):
    """Where the parts of a file lie, in bytes from its start; computed from its header alone."""

    steps: int
    finished: int
    allocator: int
    maps: int
    map_bytes: int
    end: int


STEP_BYTES: Final = STEP.size + CHECKSUM.size
FINISHED_BYTES: Final = FINISHED_RECORD.size + CHECKSUM.size
ALLOCATOR_BYTES: Final = ALLOCATOR.size + CHECKSUM.size


def map_bytes(blocks: int, requests: int) -> int:
    return _round_up(MAP_HEAD.size + blocks * 3 + requests * MAP_REQUEST.size)


def lay_out(*, steps: int, finished: int, area_bytes: int) -> Areas:
    at_finished = PAGE_BYTES + _round_up(steps * STEP_BYTES)
    at_allocator = at_finished + _round_up(finished * FINISHED_BYTES)
    at_maps = at_allocator + PAGE_BYTES
    return Areas(PAGE_BYTES, at_finished, at_allocator, at_maps, area_bytes, at_maps + 2 * area_bytes)


def write_absence(path: str, reason: str, *, engine: str = "") -> None:
    """A ring that only says why there will be no steps."""
    writer = RingWriter(path, blocks=0, block_size=0, engine=engine, slots=(1, 1))
    writer.fail(reason)
    writer.close()


class RingWriter:
    """Makes the file anew and owns it. One thread writes. Raises OSError when the file cannot be had in full: a hole
    that the disk cannot fill would end the process at a later write (SIGBUS)."""

    def __init__(
        self,
        path: str,
        *,
        blocks: int,
        block_size: int,
        engine: str,
        flags: int = 0,
        max_sequences: int = 0,
        kv_bytes: int = 0,
        slots: tuple[int, int] = (STEP_SLOTS, FINISHED_SLOTS),
    ) -> None:
        """`blocks` counts the null block; 0 = no block map. `slots`: kept steps and kept finished requests."""
        step_slots, finished_slots = slots
        self.blocks = min(blocks, MAX_BLOCKS)
        rows = min(REQUEST_ROWS, max(1, max_sequences)) if self.blocks else 0
        self.request_rows = rows
        area = map_bytes(self.blocks, rows) if self.blocks else 0
        self._areas = lay_out(steps=step_slots, finished=finished_slots, area_bytes=area)
        self._step_slots, self._finished_slots = step_slots, finished_slots
        head = HEADER.pack(
            MAGIC, LAYOUT_VERSION, os.getpid(), time.monotonic_ns(), int(time.time() * 1e6), step_slots, finished_slots,
            self.blocks, block_size, rows, area, flags, max_sequences, kv_bytes, _cut(engine, 32),
        )  # fmt: skip
        self._memory = _make_file(path, head, self._areas.end)
        self._view = memoryview(self._memory)
        words = self._view[WORDS_OFFSET : WORDS_OFFSET + WORD_COUNT * 8]
        self.words = words.cast("Q")
        self._steps = self._finished = self._maps = self._allocators = 0

    @property
    def newest_step(self) -> int:
        """Sequence number of the newest step; 0 before the first."""
        return self._steps

    def put_step(self, fields: StepFields) -> None:
        self._steps = sequence = self._steps + 1
        content = STEP.pack(sequence, *fields)
        self._put(self._areas.steps + (sequence % self._step_slots) * STEP_BYTES, content)
        self.words[STEPS] = sequence

    def put_finished(self, fields: FinishedFields) -> None:
        self._finished = sequence = self._finished + 1
        content = FINISHED_RECORD.pack(sequence, *fields[:-1], _cut(fields.request_id, ID_BYTES))
        self._put(self._areas.finished + (sequence % self._finished_slots) * FINISHED_BYTES, content)
        self.words[FINISHED] = sequence

    def put_allocator(self, fields: AllocatorFields) -> None:
        self._allocators = sequence = self._allocators + 1
        self._put(self._areas.allocator, ALLOCATOR.pack(sequence, *fields))
        self.words[ALLOCATORS] = sequence

    def put_map(
        self, states: bytes, owners: bytes, requests: Sequence[MapRequest], *, first_step: int, last_step: int
    ) -> None:
        """`states`: a byte for each block; `owners`: 16 bits for each, an index into `requests` or NO_OWNER."""
        if len(states) != self.blocks or len(owners) != 2 * self.blocks:
            raise ValueError("a map has a state and an owner for each block")
        self._maps = sequence = self._maps + 1
        rows = [
            MAP_REQUEST.pack(*row[1:], _cut(row.request_id, ID_BYTES))
            for row in requests[: self.request_rows]
        ]
        body = b"".join([states, owners, *rows])
        head = (sequence, time.monotonic_ns(), first_step, last_step, self.blocks, len(rows))
        checksum = zlib.crc32(body, zlib.crc32(MAP_HEAD.pack(*head, 0)))
        start = self._areas.maps + (sequence & 1) * self._areas.map_bytes
        self._view[start : start + MAP_HEAD.size] = MAP_HEAD.pack(*head, checksum)
        self._view[start + MAP_HEAD.size : start + MAP_HEAD.size + len(body)] = body
        self.words[MAPS] = sequence

    def add(self, word: int, increase: int) -> None:
        self.words[word] += increase

    def is_watched(self, now_ns: int) -> bool:
        return self.words[WATCHED_UNTIL_NS] > now_ns

    def fail(self, reason: str) -> None:
        """Says why no more records come."""
        text = _cut(reason, REASON_BYTES - _REASON_HEAD.size)
        head = _REASON_HEAD.pack(zlib.crc32(text), len(text))
        self._view[REASON_OFFSET : REASON_OFFSET + len(head) + len(text)] = head + text

    def close(self) -> None:
        self.words.release()
        self._view.release()
        self._memory.close()

    def _put(self, start: int, content: bytes) -> None:
        whole = content + CHECKSUM.pack(zlib.crc32(content))
        self._view[start : start + len(whole)] = whole


def read_reason(header_page: bytes) -> str:
    """From the first page of a file; "" when none is written, or while it is being written."""
    checksum, length = _REASON_HEAD.unpack_from(header_page, REASON_OFFSET)
    start = REASON_OFFSET + _REASON_HEAD.size
    text = header_page[start : start + min(length, REASON_BYTES)]
    return text.decode(errors="replace") if length and zlib.crc32(text) == checksum else ""


def _make_file(path: str, head: bytes, size: int) -> mmap.mmap:
    """The file appears under its name when its header is whole."""
    beside = f"{path}.{os.getpid()}"
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.pwrite(descriptor, head, 0)
        # Filled in now, so that no step waits for a page.
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        os.rename(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    finally:
        os.close(descriptor)
    return memory


def _cut(text: str, size: int) -> bytes:
    return text.encode(errors="replace")[:size]


def _round_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
