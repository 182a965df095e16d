"""Reads the stream of request facts from Redis and stores them as cells, from where it stopped."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, cast

import redis
from django.db import DatabaseError, InterfaceError, close_old_connections, transaction
from django.utils import timezone

from pool.models import RoutingState
from pool.telemetry.facts import fold
from pool.telemetry.store import add_cells, add_requests, move_position, read_position

logger = logging.getLogger(__name__)

_Entry = tuple[bytes, dict[bytes, bytes]]
_Answer = list[tuple[bytes, list[_Entry]]]

BATCH = 200
BLOCK_MS = 1000


class Ingester:
    """One thread is enough: a fact costs some 20 microseconds, a cell one row."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_connect_timeout=0.5, socket_timeout=3.0, retry=None)
        self.stopping = threading.Event()
        self.facts = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.run_once()
            except (redis.RedisError, DatabaseError, InterfaceError, RoutingState.DoesNotExist) as exc:
                logger.info("telemetry: waiting: %s", exc)
                self.stopping.wait(1.0)
            finally:
                close_old_connections()

    def run_once(self, *, block_ms: int = BLOCK_MS) -> int:
        """Takes at most one batch. Returns the number of facts in it."""
        stream = f"sluice:{RoutingState.objects.get(pk=1).installation}:facts"
        position = read_position(stream)
        close_old_connections()
        answer = cast(_Answer, self._client.xread({stream: position}, count=BATCH, block=block_ms))
        if not answer:
            self._notice_emptied(stream, position)
            return 0
        entries = answer[0][1]
        facts, unreadable = _read_entries(entries)
        folded = fold(facts)
        with transaction.atomic():
            add_cells(folded.cells)
            add_requests(folded.records)
            unreadable += folded.unreadable
            move_position(stream, entries[-1][0].decode(), unreadable=unreadable, now=timezone.now())
        self.facts += len(facts)
        return len(facts)

    def _notice_emptied(self, stream: str, position: str) -> None:
        """A Redis that lost its data counts its entries from the clock again; ids never fall below ours by design,
        but a clock that was set back would hide new facts for ever."""
        newest = cast(list[_Entry], self._client.xrevrange(stream, count=1))
        if newest and _order(newest[0][0].decode()) < _order(position):
            logger.warning(
                "telemetry: the stream was emptied and its clock set back; reading it from its start"
            )
            move_position(stream, "0", unreadable=0, now=timezone.now())

    def stop(self) -> None:
        self.stopping.set()


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def _read_entries(entries: list[_Entry]) -> tuple[list[dict[str, Any]], int]:
    facts: list[dict[str, Any]] = []
    unreadable = 0
    for _, fields in entries:
        try:
            batch = json.loads(fields[b"b"])
            facts.extend(fact for fact in batch if isinstance(fact, dict))
        except (KeyError, ValueError, TypeError):
            unreadable += 1
    return facts, unreadable
