"""Reads an engine's step ring (`workers/plugin/sluice_engine/ring.py`): steps, finished requests, the block map.

By `pread`, never by a mapping: an engine that cuts its file must not end the worker. A record that is being written, or
was overwritten meanwhile, fails its checksum and is left out; nothing of a file is trusted without bounds.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Callable
from typing import Final

from workers.plugin.sluice_engine import ring
from workers.ring_records import (
    Allocator,
    BlockMap,
    BlockOwner,
    FinishedRequest,
    Head,
    OwnCost,
    Slots,
    Step,
    is_whole,
    make_allocator,
    make_finished,
    make_owners,
    make_step,
    read_head,
    sum_allocators,
)

__all__ = ["Allocator", "BlockMap", "BlockOwner", "FinishedRequest", "Head", "OwnCost", "RingReader", "Step"]

# Of one engine on one host.
MAX_RANKS: Final = 16
RANKS_EVERY_S: Final = 10.0
NOT_LOADED: Final = "The engine wrote no step ring: its plug-in is not installed or was not loaded."


class RingReader:
    """One reader of one engine's ring; it finds a file that comes later, and a new one in the place of an old one.

    `lost_steps` and `lost_finished` count what was overwritten before it was read. With `from_start` the first reading
    gives what the file still holds, else only what comes after it.
    """

    def __init__(
        self,
        path: str,
        *,
        from_start: bool = False,
        clock: Callable[[], float] = time.monotonic,
        is_rank: bool = False,
    ) -> None:
        """`is_rank`: the ring of one device's process, which has none beside it."""
        self.path = path
        self.lost_steps = self.lost_finished = 0
        self._clock = clock
        self._from_start = from_start
        self._descriptor = -1
        self._inode = (-1, -1)
        self._absence = NOT_LOADED
        self._head: Head | None = None
        self._read_step = self._read_request = 0
        self._is_rank = is_rank
        self._ranks: list[RingReader] = []
        self._ranks_found_at = -1e9

    @property
    def head(self) -> Head | None:
        """None while there is no ring that this version can read."""
        self._refresh()
        return self._head

    @property
    def missing(self) -> str:
        """Why no (more) steps come; "" when all is well."""
        self._refresh()
        if self._head is None:
            return self._absence
        return ring.read_reason(self._read(0, ring.PAGE_BYTES))

    def read_steps(self) -> list[Step]:
        """What came since the last reading, oldest first; never more than the ring holds."""
        if (head := self.head) is None:
            return []
        newest = self._word(ring.STEPS)
        rows, self._read_step, lost = self._read_records(
            Slots(head.areas.steps, ring.STEP, ring.STEP_BYTES, head.step_slots), self._read_step, newest
        )
        self.lost_steps += lost
        return [make_step(row) for row in rows]

    def read_finished(self) -> list[FinishedRequest]:
        if (head := self.head) is None:
            return []
        newest = self._word(ring.FINISHED)
        rows, self._read_request, lost = self._read_records(
            Slots(head.areas.finished, ring.FINISHED_RECORD, ring.FINISHED_BYTES, head.finished_slots),
            self._read_request,
            newest,
        )
        self.lost_finished += lost
        return [make_finished(row) for row in rows]

    def read_newest_step(self) -> Step | None:
        """The newest step, read before or not, with what runs, waits and is used now. None before the first."""
        if (head := self.head) is None or not (newest := self._word(ring.STEPS)):
            return None
        rows, _, _ = self._read_records(
            Slots(head.areas.steps, ring.STEP, ring.STEP_BYTES, head.step_slots), newest - 1, newest
        )
        if not rows:
            return None
        words = self._words()
        return make_step(rows[-1])._replace(
            running=words[ring.RUNNING],
            waiting=words[ring.WAITING],
            used_blocks=words[ring.USED_BLOCKS],
        )

    def read_block_map(self) -> BlockMap | None:
        """The newest whole map. None before the first one, and for an engine without blocks."""
        head = self.head
        if head is None or not head.blocks:
            return None
        newest = self._word(ring.MAPS)
        for sequence in (newest, newest - 1):
            if sequence > 0 and (found := self._read_map(head, sequence)) is not None:
                return found
        return None

    def read_allocator(self) -> Allocator | None:
        """Of all devices of the engine together, as old as its oldest part. None where there is no CUDA."""
        if (head := self.head) is None:
            return None
        if self._word(ring.ALLOCATORS):
            content = self._read(head.areas.allocator, ring.ALLOCATOR_BYTES)
            return make_allocator(content) if is_whole(content) else None
        return sum_allocators([reader.read_allocator() for reader in self._find_ranks()])

    def _find_ranks(self) -> list[RingReader]:
        """Rings of the worker processes of an engine with several devices; looked for now and then."""
        now = self._clock()
        if now - self._ranks_found_at >= RANKS_EVERY_S and not self._is_rank:
            self._ranks_found_at = now
            for rank in range(len(self._ranks), MAX_RANKS):
                path = os.path.join(os.path.dirname(self.path), ring.RANK_NAME.format(rank))
                if not os.path.exists(path):
                    break
                self._ranks.append(RingReader(path, clock=self._clock, is_rank=True))
        return self._ranks

    def read_cost(self) -> OwnCost | None:
        if self.head is None:
            return None
        words = self._words()
        own, scan, step = (words[name] / 1e9 for name in (ring.OWN_NS, ring.SCAN_NS, ring.STEP_NS))
        return OwnCost(own, scan, step, words[ring.SCANS], words[ring.FAILURES])

    def newest_age_s(self, now_s: float | None = None) -> float | None:
        """Since the end of the newest step, on CLOCK_MONOTONIC. None before the first step."""
        newest = self.read_newest_step()
        if newest is None:
            return None
        return max(0.0, (self._clock() if now_s is None else now_s) - newest.at_s)

    def in_step_s(self, now_s: float | None = None) -> float | None:
        """How long the step in progress takes already; None between steps. A hung engine's grows."""
        if self.head is None or not (since := self._word(ring.IN_STEP_NS)):
            return None
        return max(0.0, (self._clock() if now_s is None else now_s) - since / 1e9)

    def watch(self, seconds: float) -> None:
        """Says that somebody looks at the block map: it is then made as often as the plug-in's budget allows."""
        self._write_word(ring.WATCHED_UNTIL_NS, int((self._clock() + seconds) * 1e9))

    def ask_for_segments(self) -> None:
        """Asks for the allocator's segments, once; they come as files beside the ring (`ring.SEGMENTS_NAME`, and
        `ring.RANK_SEGMENTS_NAME` for each of several devices)."""
        if self.head is not None:
            self._write_word(ring.SEGMENTS_WISH, self._word(ring.SEGMENTS_WISH) + 1)
            for rank in self._find_ranks():
                rank.ask_for_segments()

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._head, self._inode = -1, None, (-1, -1)

    def _refresh(self) -> None:
        try:
            found = os.stat(self.path)
        except OSError:
            # What an engine left stays readable after its folder went; a file that never was stays absent.
            return
        if (found.st_dev, found.st_ino) != self._inode:
            self._open((found.st_dev, found.st_ino))

    def _open(self, inode: tuple[int, int]) -> None:
        first = self._inode == (-1, -1)
        self.close()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as exc:
            self._absence = f"The step ring cannot be opened: {exc.strerror}."
            return
        self._inode = inode
        self._head, self._absence = read_head(self._read(0, ring.HEADER.size), os.fstat(self._descriptor))
        self._read_step = self._read_request = 0
        if self._head is not None and first and not self._from_start:
            self._read_step, self._read_request = self._word(ring.STEPS), self._word(ring.FINISHED)

    def _read_records(self, slots: Slots, last: int, newest: int) -> tuple[list[tuple[int, ...]], int, int]:
        """Records after `last`, up to which one all is settled now, and how many of them are lost."""
        first = max(last + 1, newest - slots.count + 1)
        lost = max(0, first - last - 1)
        found: list[tuple[int, ...]] = []
        settled = max(last, first - 1)
        for sequence, content in self._read_slots(slots, first, newest):
            row = slots.layout.unpack_from(content) if len(content) == slots.size else (0,)
            if row[0] == sequence and is_whole(content):
                found.append(row)
            elif sequence == newest:
                # Its bytes may not have come through yet: next time.
                break
            else:
                lost += 1
            settled = sequence
        return found, settled, lost

    def _read_slots(self, slots: Slots, first: int, newest: int) -> list[tuple[int, bytes]]:
        """At most two reads: up to the end of the area, and from its start."""
        if newest < first:
            return []
        if newest - first >= slots.count:
            first = newest - slots.count + 1
        start = first % slots.count
        head = min(newest - first + 1, slots.count - start)
        content = self._read(slots.start + start * slots.size, head * slots.size)
        if (rest := newest - first + 1 - head) > 0:
            content += self._read(slots.start, rest * slots.size)
        return [
            (first + number, content[number * slots.size : (number + 1) * slots.size])
            for number in range(newest - first + 1)
        ]

    def _read_map(self, head: Head, sequence: int) -> BlockMap | None:
        start = head.areas.maps + (sequence & 1) * head.area_bytes
        content = self._read(start, head.area_bytes)
        if len(content) < ring.MAP_HEAD.size:
            return None
        *fields, checksum = ring.MAP_HEAD.unpack_from(content)
        found, at_ns, first, last, blocks, rows = fields
        size = blocks * 3 + rows * ring.MAP_REQUEST.size
        body = content[ring.MAP_HEAD.size : ring.MAP_HEAD.size + size]
        if found != sequence or blocks != head.blocks or rows > head.request_rows or len(body) != size:
            return None
        if zlib.crc32(body, zlib.crc32(ring.MAP_HEAD.pack(*fields, 0))) != checksum:
            return None
        owners = make_owners(body[blocks * 3 :])
        return BlockMap(
            at_ns / 1e9, first, last, head.block_size_tokens, body[:blocks], body[blocks : blocks * 3], owners
        )

    def _words(self) -> tuple[int, ...]:
        content = self._read(ring.WORDS_OFFSET, ring.WORD_COUNT * 8).ljust(ring.WORD_COUNT * 8, b"\0")
        return struct.unpack(f"={ring.WORD_COUNT}Q", content)

    def _word(self, number: int) -> int:
        return self._words()[number]

    def _write_word(self, number: int, value: int) -> None:
        if self.head is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, struct.pack("=Q", value), ring.WORDS_OFFSET + number * 8)

    def _read(self, start: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, start)
        except OSError:
            return b""
