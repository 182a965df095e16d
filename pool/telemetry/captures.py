"""Stores the masked texts that gateways pass on of keys that opted in, takes them out of Redis, drops expired ones."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import orjson
import redis
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from pool.models import CapturedText, Key, RoutingState
from pool.services.captures import KEY_CHARACTERS, drop_expired_texts

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
DROP_EVERY_S: Final = 60.0
_COUNT: Final = 50


def store_texts(client: redis.Redis, installation: str, *, kept: timedelta, now: datetime) -> int:
    """Returns how many entries were taken. Only those of keys that still keep texts are stored."""
    name = f"sluice:{installation}:captures"
    entries = cast(list[tuple[bytes, dict[bytes, bytes]]], client.xrange(name, count=_COUNT))
    if not entries:
        return 0
    willing = {
        digest[:KEY_CHARACTERS]
        for digest in Key.objects.filter(capture_ratio__gt=0, revoked_at=None).values_list(
            "digest", flat=True
        )
    }
    rows = [row for _, entry in entries if (row := _read(entry, kept, now)) is not None]
    CapturedText.objects.bulk_create([row for row in rows if row.key in willing], ignore_conflicts=True)
    client.xdel(name, *[entry_id for entry_id, _ in entries])
    return len(entries)


def _read(entry: dict[bytes, bytes], kept: timedelta, now: datetime) -> CapturedText | None:
    """None for one of another shape."""
    try:
        fields: dict[str, Any] = orjson.loads(entry[b"b"])
        return CapturedText(
            request_id=str(fields["request_id"])[:64],
            at=datetime.fromtimestamp(float(fields["at"]), UTC),
            model=_clean(fields["model"])[:63],
            key=str(fields["key"])[:16],
            status=int(fields["status"]),
            outcome=str(fields["outcome"])[:63],
            input=[[_clean(role)[:32], _clean(text)] for role, text in fields["input"]],
            output=_clean(fields["output"]),
            kept_until=now + kept,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _clean(text: Any) -> str:
    """PostgreSQL takes no NUL."""
    return str(text).replace("\0", "")


class TextKeeper(threading.Thread):
    """Beside the ingestion; waits and goes on when Redis or the database is away."""

    def __init__(self, client: redis.Redis, *, kept: timedelta) -> None:
        super().__init__(name="texts", daemon=True)
        self.stopping = threading.Event()
        self._client, self._kept = client, kept

    def run(self) -> None:
        dropped_at: datetime | None = None
        while not self.stopping.wait(EVERY_S):
            try:
                now = timezone.now()
                if dropped_at is None or (now - dropped_at).total_seconds() >= DROP_EVERY_S:
                    drop_expired_texts(now)
                    dropped_at = now
                installation = RoutingState.objects.get(pk=1).installation
                while store_texts(self._client, installation, kept=self._kept, now=now) == _COUNT:
                    continue
            except (redis.RedisError, DatabaseError, InterfaceError, RoutingState.DoesNotExist) as exc:
                logger.info("texts: waiting: %s", type(exc).__name__)
                connection.close()
        connection.close()
