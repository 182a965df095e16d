"""Times in queries: those that arithmetic can be done with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from rest_framework import serializers

EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(3000, 1, 1, tzinfo=UTC)
"""Nothing is older, and an hour before the year 1 is no time at all."""


class Moment(serializers.DateTimeField):
    def to_internal_value(self, value: Any) -> datetime:
        found: datetime = super().to_internal_value(value)
        if not EARLIEST <= found <= LATEST:
            raise serializers.ValidationError(f"It must lie between {EARLIEST.year} and {LATEST.year}.")
        return found
