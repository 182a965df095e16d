"""A bounded buffer of request records on their way to telemetry. Never holds prompt text or a key."""

from collections import deque
from typing import Any

_MAX_RECORDS = 50_000


class FactBuffer:
    """`dropped` counts what never reached telemetry; serving never waits for it."""

    def __init__(self, capacity: int = _MAX_RECORDS) -> None:
        self._records: deque[dict[str, Any]] = deque()
        self._capacity = capacity
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: dict[str, Any]) -> None:
        if len(self._records) >= self._capacity:
            self._records.popleft()
            self.dropped += 1
        self._records.append(record)

    def take(self, limit: int) -> list[dict[str, Any]]:
        """The oldest records, taken out."""
        return [self._records.popleft() for _ in range(min(limit, len(self._records)))]

    def drop(self, count: int) -> None:
        """For records that were taken and could not be sent."""
        self.dropped += count
