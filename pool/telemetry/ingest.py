"""Reads facts and samples from Redis, publishes what is open, and stores it: from where it stopped, nothing twice.

One thread reads, folds and publishes; a second one stores, so that a slow database delays no live page.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import redis
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, connection

from pool.models import RoutingState
from pool.telemetry import streams
from pool.telemetry.memory import Memory
from pool.telemetry.rebuilding import rebuild
from pool.telemetry.store import Batch, Overtaken, Store

logger = logging.getLogger(__name__)

PUBLISH_S: Final = 0.2
STORE_S: Final = 1.0
CHECK_S: Final = 1.0
RETRY_S: Final = 1.0
LAST_WRITE_S: Final = 3.0
"""At the end of the process; what is not stored by then is read again by the next one."""
MOST_ROUNDS: Final = 10
"""Readings of COUNT entries each before the next publishing."""
LONGEST_UNSTORED_S: Final = 30.0
"""From there on the streams wait in Redis, which bounds what memory holds."""


@dataclass
class Counts:
    """Of this process, for /metrics."""

    stored_batches: int = 0
    failed_batches: int = 0
    discarded: int = 0
    """Records that the database refused."""
    resets: int = 0
    lost_entries: int = 0
    """Cut off by Redis' bounds before they were read."""
    messages: int = 0
    store_s: float = 0.0
    """Of the newest batch."""
    newest_stored_at_s: float | None = None


@dataclass
class Ingester:
    url: str
    clock: Callable[[], float] = time.time
    stopping: threading.Event = field(default_factory=threading.Event)
    counts: Counts = field(default_factory=Counts)
    memory: Memory | None = None

    def __post_init__(self) -> None:
        self._client = streams.connect(self.url)
        self._store = Store()
        self._prefix = ""
        self._epoch, self._seq = uuid.uuid4().hex[:12], 0
        self._published_s = self._stored_s = self._checked_s = 0.0
        self._losses = {"facts": streams.Losses(), "samples": streams.Losses()}
        self._writing: Future[Any] | None = None
        self._batch: Batch | None = None
        self._unstored_since_s: float | None = None

    # The process -------------------------------------------------------------------------------------------

    def run(self) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="store") as storing:
            while not self.stopping.is_set():
                try:
                    self._collect(storing)
                    if self.memory is not None and not self._must_wait():
                        self._wait_for_turn()
                        self._read(block_ms=int(PUBLISH_S * 1000))
                        self._publish()
                        self._check()
                    else:
                        self.stopping.wait(0.05)
                except redis.RedisError as exc:
                    logger.info("telemetry: waiting for redis: %s", exc)
                    self.stopping.wait(RETRY_S)
                self._start_storing(storing)
            self._finish(storing)

    def run_once(self, *, block_ms: int = 1) -> int:
        """Reads what is there, publishes and stores it. Returns the number of facts that were read."""
        if self.memory is None:
            self.memory = self._prepare()
        before = self.memory.fact_count
        self._read(block_ms=block_ms)
        self._publish()
        self._check()
        batch = self.memory.take_batch(self._prefix, now_s=self.clock())
        if batch is not None:
            try:
                self._write(batch)
            except Overtaken:
                self.memory = None
                raise
            self.memory.note_stored(batch)
        return self.memory.fact_count - before if self.memory else 0

    def stop(self) -> None:
        self.stopping.set()

    # Reading -----------------------------------------------------------------------------------------------

    def _wait_for_turn(self) -> None:
        self.stopping.wait(max(0.0, self._published_s + PUBLISH_S - time.monotonic()))

    def _read(self, *, block_ms: int) -> None:
        memory = self._memory()
        for number in range(MOST_ROUNDS):
            facts, samples = f"{self._prefix}:facts", f"{self._prefix}:samples"
            positions = {facts: memory.facts.read, samples: memory.samples.read}
            found = streams.read(self._client, positions, block_ms=None if number else block_ms)
            if number == 0:
                self._published_s = time.monotonic()
            now_s = self.clock()
            for entry_id, fields in found.get(facts, ()):
                memory.fold_facts(entry_id.decode(), fields.get(b"b"), now_s=now_s)
            for entry_id, fields in found.get(samples, ()):
                memory.fold_sample(entry_id.decode(), fields.get(b"b"), now_s=now_s)
            if memory.is_full or max(map(len, found.values()), default=0) < streams.COUNT:
                return

    def _publish(self) -> None:
        memory = self._memory()
        memory.settle(now_s=self.clock())
        channel = f"{self._prefix}:open"
        listeners: Any = self._client.pubsub_numsub(channel)
        if not listeners or not listeners[0][1]:
            memory.forget_touched()
            return
        for message in memory.write_messages(self._epoch, self._seq + 1):
            self._client.publish(channel, message)
            self._seq += 1
            self.counts.messages += 1

    def _check(self) -> None:
        """Now and then: is the stream still the one that was read, and all of it? Cuts off what is stored."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s, memory = now_s, self._memory()
        for name, reading in (("facts", memory.facts), ("samples", memory.samples)):
            stream = f"{self._prefix}:{name}"
            if streams.was_emptied(self._client, stream, reading.read):
                logger.warning(
                    "telemetry: %s was emptied and its clock set back; reading it from its start", name
                )
                reading.read = "0"
                continue
            lost = self._losses[name].count(self._client, stream, position=reading.read, read=reading.entries)
            if lost:
                self.counts.lost_entries += lost
                reading.dropped += lost
                logger.warning("telemetry: %s entries of %s were cut off before they were read", lost, name)
            streams.trim(self._client, stream, stored=reading.stored, now_s=self.clock())

    # Storing -----------------------------------------------------------------------------------------------

    def _must_wait(self) -> bool:
        """Too much is in memory that the database has not taken."""
        since_s = self._unstored_since_s
        late = since_s is not None and time.monotonic() - since_s > LONGEST_UNSTORED_S
        return late or self._memory().is_full

    def _start_storing(self, storing: ThreadPoolExecutor) -> None:
        now_s = time.monotonic()
        if self._writing is not None or now_s - self._stored_s < STORE_S:
            return
        self._stored_s = now_s
        if self.memory is None:
            self._writing = storing.submit(self._prepare)
            return
        if self._batch is None:
            self._batch = self.memory.take_batch(self._prefix, now_s=self.clock())
        if self._batch is not None:
            self._unstored_since_s = self._unstored_since_s or now_s
            self._writing = storing.submit(self._write, self._batch)

    def _collect(self, storing: ThreadPoolExecutor) -> None:
        """What became of the newest writing."""
        if self._writing is None or not self._writing.done():
            return
        writing, self._writing = self._writing, None
        try:
            outcome = writing.result()
        except Overtaken as exc:
            logger.warning("telemetry: %s was stored by another process; reading the tables again", exc)
            self.counts.resets += 1
            self.memory = self._batch = self._unstored_since_s = None
        except (DataError, IntegrityError) as exc:
            self._discard(exc)
        except (DatabaseError, InterfaceError, RoutingState.DoesNotExist, redis.RedisError) as exc:
            logger.info("telemetry: waiting: %s", exc)
            self.counts.failed_batches += 1
            storing.submit(_close)
        else:
            self._note(outcome)

    def _note(self, outcome: Memory | float) -> None:
        if isinstance(outcome, Memory):
            self.memory = outcome
            return
        batch, self._batch, self._unstored_since_s = self._batch, None, None
        if batch is not None:
            self._memory().note_stored(batch)

    def _write(self, batch: Batch) -> float:
        """Returns how long it took, in seconds. Runs in the storing thread."""
        started_s = time.monotonic()
        self._store.write(batch, now=datetime.fromtimestamp(self.clock(), tz=UTC))
        self.counts.stored_batches += 1
        self.counts.store_s = time.monotonic() - started_s
        self.counts.newest_stored_at_s = self.clock()
        return self.counts.store_s

    def _discard(self, exc: Exception) -> None:
        """The database refuses a value for good: single requests are given up, the counts are kept."""
        batch = self._batch
        if batch is None:
            raise exc
        logger.error("telemetry: %s records were refused: %s", len(batch.records), exc)
        self.counts.discarded += len(batch.records) + len(batch.joins)
        if not batch.records and not batch.joins:
            self.memory = self._batch = self._unstored_since_s = None
            self.counts.resets += 1
        else:
            batch.records, batch.joins = [], []

    def _prepare(self) -> Memory:
        """Memory as the tables say. Runs in the storing thread."""
        installation = RoutingState.objects.get(pk=1).installation
        self._prefix = f"sluice:{installation}"
        now_s = self.clock()
        memory = rebuild(self._prefix, now_s=now_s)
        stream, stored = f"{self._prefix}:samples", memory.samples.stored
        for _, fields in streams.read_recent(self._client, stream, until=stored, now_s=now_s):
            memory.fold_recent(fields.get(b"b"), now_s=now_s)
        return memory

    def _finish(self, storing: ThreadPoolExecutor) -> None:
        try:
            if self._writing is not None:
                self._writing.result(LAST_WRITE_S)
                self._collect(storing)
            if self.memory is not None and self._batch is None:
                batch = self.memory.take_batch(self._prefix, now_s=self.clock())
                if batch is not None:
                    storing.submit(self._write, batch).result(LAST_WRITE_S)
        except (DatabaseError, InterfaceError, Overtaken, TimeoutError) as exc:
            logger.info("telemetry: the last batch was not stored, it will be read again: %s", exc)
        storing.submit(_close)

    def _memory(self) -> Memory:
        if self.memory is None:
            raise RuntimeError("telemetry has no memory yet")
        return self.memory


def _close() -> None:
    """The connection of the thread that calls it: the name looks it up."""
    connection.close()
