"""Books what keys used: what the gateways' totals in Redis are beyond what was booked of them. Exact.

The gateways' totals only grow and are kept on their disks, so Redis may lose them; booking again adds nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final, cast

import orjson
import redis
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.utils import timezone

from pool.models import RoutingState, UsagePosition
from pool.telemetry.partitions import make_ahead

logger = logging.getLogger(__name__)

USED: Final = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
EVERY_S: Final = 2.0
AHEAD_EVERY_S: Final = 600.0
CHUNK: Final = 500
ENDED: Final = b"ended"
_HIGHEST: Final = 2**62
_BOOKING: Final = 0x51_0CE_02
"""Advisory lock: a position and what it adds belong together, whoever books."""

Place = tuple[str, date, str, str]


@dataclass(frozen=True)
class Total:
    """What one gateway run counted of a key and a model on a day."""

    place: Place
    totals: dict[str, int]
    name: bytes


@dataclass
class Booker:
    client: redis.Redis
    unreadable: int = 0
    booked: int = 0
    """Totals that had grown, since the process started."""
    _seen: dict[bytes, bytes] = field(default_factory=dict)

    def book(self, installation: str, *, now: datetime) -> int:
        """Returns how many totals had grown. Raises database and Redis errors; nothing is lost by them."""
        name = f"sluice:{installation}:usage"
        content = dict(cast(Iterable[tuple[bytes, bytes]], self.client.hscan_iter(name, count=CHUNK)))
        grown = [(field, value) for field, value in content.items() if self._seen.get(field) != value]
        totals = [total for field, value in grown if (total := self._read(field, value)) is not None]
        for start in range(0, len(totals), CHUNK):
            book_totals(totals[start : start + CHUNK], now=now)
        self._seen = content
        self.booked += len(totals)
        self._remove_ended(name, content)
        return len(totals)

    def _read(self, name: bytes, value: bytes) -> Total | None:
        if b"|" not in name:
            return None
        try:
            run, day, key, model = name.decode().split("|", 3)
            found = orjson.loads(value)
            totals = {used: min(_HIGHEST, max(0, int(found.get(used) or 0))) for used in USED}
            return Total((run[:96], date.fromisoformat(day), key[:64], model[:63]), totals, name)
        except (AttributeError, TypeError, ValueError):
            self.unreadable += 1
            return None

    def _remove_ended(self, name: str, content: dict[bytes, bytes]) -> None:
        """Runs that are over: all of them is booked by now."""
        ended = {field for field, value in content.items() if b"|" not in field and value == ENDED}
        for run in ended:
            fields = [field for field in content if field == run or field.startswith(run + b"|")]
            _note_end(run.decode()[:96])
            for start in range(0, len(fields), CHUNK):
                self.client.hdel(name, *fields[start : start + CHUNK])


def book_totals(totals: list[Total], *, now: datetime) -> None:
    """Adds what is new of them, and notes how far they are booked, in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_BOOKING])
        stored = _read_positions({total.place[0] for total in totals}, {total.place[1] for total in totals})
        grown: dict[tuple[date, str, str], list[int]] = {}
        positions = []
        for total in totals:
            before = stored.get(total.place, {})
            # A total that fell is an older one of the same run: what is booked stays booked.
            highest = {name: max(total.totals[name], int(before.get(name, 0))) for name in USED}
            added = [highest[name] - int(before.get(name, 0)) for name in USED]
            sums = grown.setdefault(total.place[1:], [0] * len(USED))
            for number, amount in enumerate(added):
                sums[number] += amount
            run, day, key, model = total.place
            positions.append(
                UsagePosition(run=run, day=day, key=key, model=model, totals=highest, updated_at=now)
            )
        _add(cursor, grown)
        UsagePosition.objects.bulk_create(
            positions,
            update_conflicts=True,
            unique_fields=["run", "day", "key", "model"],
            update_fields=["totals", "updated_at"],
        )


def _read_positions(runs: set[str], days: set[date]) -> dict[Place, dict[str, Any]]:
    rows = UsagePosition.objects.filter(run__in=runs, day__in=days)
    return {
        (run, day, key, model): totals
        for run, day, key, model, totals in rows.values_list("run", "day", "key", "model", "totals")
    }


def _add(cursor: Any, grown: dict[tuple[date, str, str], list[int]]) -> None:
    sums = ", ".join(f"{name} = pool_keyusage.{name} + excluded.{name}" for name in USED)
    cursor.executemany(
        f"INSERT INTO pool_keyusage (day, key, model, {', '.join(USED)}) VALUES (%s, %s, %s, %s, %s, %s, %s)"
        f" ON CONFLICT (day, key, model) DO UPDATE SET {sums}",
        [(*place, *amounts) for place, amounts in sorted(grown.items()) if any(amounts)],
    )


def _note_end(run: str) -> None:
    """Its positions are no longer needed once nothing can send its totals again (`services/retention.py`)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pool_usageposition SET totals = totals || %s::jsonb WHERE run = %s",
            ['{"ended": true}', run],
        )


class Keeper(threading.Thread):
    """Books usage, and makes partitions ahead, beside the ingestion."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(name="usage", daemon=True)
        self.booker, self.stopping = Booker(client), threading.Event()
        self.failures = 0

    def run(self) -> None:
        made_ahead_at: datetime | None = None
        while not self.stopping.wait(EVERY_S):
            try:
                now = timezone.now()
                if made_ahead_at is None or (now - made_ahead_at).total_seconds() > AHEAD_EVERY_S:
                    make_ahead(now)
                    made_ahead_at = now
                self.booker.book(RoutingState.objects.get(pk=1).installation, now=now)
            except (redis.RedisError, DatabaseError, InterfaceError, RoutingState.DoesNotExist) as exc:
                self.failures += 1
                logger.info("usage: waiting: %s", exc)
                connection.close()
        connection.close()
