"""What each key used, per day and model: exact totals in mapped memory, which outlives the process that writes it.

No system call and no lock per request. A kill at any moment leaves each total as it was before or after the request:
the numbers of a slot are there twice, and a counter says which copy is good. Telemetry facts may be dropped; these not.
"""

import mmap
import struct
from collections.abc import Iterator
from datetime import date

SLOTS = 4096
"""Keys × models of one day and process. What comes beyond is still counted, under no key and no model."""
HEAD_BYTES = 256
SLOT_BYTES = 208
FILE_BYTES = HEAD_BYTES + SLOTS * SLOT_BYTES
MAGIC = b"SLUICEU1"
_HEAD = struct.Struct("<8sII128s")
_NAME = struct.Struct("<II8x64s64s")
_TURN = struct.Struct("<Q")
_NUMBERS = struct.Struct("<QQQQ")
_TURN_AT = 8
_NUMBERS_AT = 144
_COPY_BYTES = 32

Entry = tuple[int, str, str, tuple[int, int, int, int]]
"""Day as an ordinal, digest of the key, model; requests, prompt tokens, cached tokens, output tokens."""


class Slot:
    __slots__ = (
        "at",
        "cached_tokens",
        "day",
        "key",
        "model",
        "output_tokens",
        "prompt_tokens",
        "requests",
        "turn",
    )

    def __init__(self, day: int, key: str, model: str, at: int) -> None:
        self.day = day
        self.key = key
        self.model = model
        self.at = at
        """Where it is in the map."""
        self.turn = 0
        self.requests = self.prompt_tokens = self.cached_tokens = self.output_tokens = 0

    def entry(self) -> Entry:
        numbers = (self.requests, self.prompt_tokens, self.cached_tokens, self.output_tokens)
        return (self.day, self.key, self.model, numbers)


class Totals:
    """Of one run. `memory` is FILE_BYTES long and zero."""

    __slots__ = ("_dirty", "_memory", "_rest", "_slots", "overflowed", "run")

    def __init__(self, memory: mmap.mmap | bytearray, run: str) -> None:
        self.run = run
        self.overflowed = 0
        """Requests that were counted under no key, because all slots were taken."""
        self._memory = memory
        self._slots: dict[tuple[int, str, str], Slot] = {}
        self._rest: Slot | None = None
        self._dirty: set[Slot] = set()
        _HEAD.pack_into(memory, 0, MAGIC, SLOT_BYTES, SLOTS, run.encode())

    def add(
        self, day: int, key: str, model: str, prompt_tokens: int, cached_tokens: int, output_tokens: int
    ) -> None:
        slot = self._slots.get((day, key, model))
        if slot is None:
            slot = self._take_slot(day, key, model)
        slot.requests += 1
        slot.prompt_tokens += prompt_tokens
        slot.cached_tokens += cached_tokens
        slot.output_tokens += output_tokens
        turn = slot.turn = slot.turn + 1
        memory, at = self._memory, slot.at
        _NUMBERS.pack_into(
            memory, at + _NUMBERS_AT + _COPY_BYTES * (turn & 1),
            slot.requests, slot.prompt_tokens, slot.cached_tokens, slot.output_tokens,
        )  # fmt: skip
        _TURN.pack_into(memory, at + _TURN_AT, turn)
        self._dirty.add(slot)

    def take_changed(self, limit: int) -> list[Slot]:
        """What was not taken since it changed."""
        return [self._dirty.pop() for _ in range(min(limit, len(self._dirty)))]

    def mark_all(self) -> None:
        """To be told again: who was told has lost it."""
        self._dirty.update(self._slots.values())
        if self._rest is not None:
            self._dirty.add(self._rest)

    def mark(self, slots: list[Slot]) -> None:
        """These did not arrive."""
        self._dirty.update(slots)

    def _take_slot(self, day: int, key: str, model: str) -> Slot:
        number = len(self._slots)
        if number < SLOTS - 1:
            slot = self._slots[day, key, model] = self._make_slot(day, key, model, number)
            return slot
        # The last one is everybody's who finds none, so that the sum over all keys stays exact.
        self.overflowed += 1
        if self._rest is None:
            self._rest = self._make_slot(day, "", "", number)
        return self._rest

    def _make_slot(self, day: int, key: str, model: str, number: int) -> Slot:
        slot = Slot(day, key, model, HEAD_BYTES + number * SLOT_BYTES)
        _NAME.pack_into(self._memory, slot.at, day, 0, key.encode(), model.encode())
        return slot


def read_run(memory: bytes) -> tuple[str, list[Entry]]:
    """What a run that is over has left. Raises ValueError for another file."""
    if len(memory) != FILE_BYTES:
        raise ValueError("the file has another length")
    magic, slot_bytes, slots, run = _HEAD.unpack_from(memory)
    if (magic, slot_bytes, slots) != (MAGIC, SLOT_BYTES, SLOTS):
        raise ValueError("the file has another layout")
    return run.rstrip(b"\0").decode(), list(_read_entries(memory))


def _read_entries(memory: bytes) -> Iterator[Entry]:
    for number in range(SLOTS):
        at = HEAD_BYTES + number * SLOT_BYTES
        (turn,) = _TURN.unpack_from(memory, at + _TURN_AT)
        if turn:
            day, _, key, model = _NAME.unpack_from(memory, at)
            numbers = _NUMBERS.unpack_from(memory, at + _NUMBERS_AT + _COPY_BYTES * (turn & 1))
            yield day, key.rstrip(b"\0").decode(), model.rstrip(b"\0").decode(), numbers


def field_of(run: str, entry: Entry) -> str:
    """In the hash `sluice:<installation>:usage`."""
    day, key, model, _ = entry
    return f"{run}|{date.fromordinal(day).isoformat()}|{key}|{model}"
