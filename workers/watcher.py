"""Follows one running engine from its first sign of life to its end, in a thread of its own.

It reports to PostgreSQL by compare-and-set, so a watcher of an older generation changes nothing. Without
PostgreSQL it waits; it never starts, stops or kills anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from pool.domain.backoff import Failure, FailureKind
from pool.domain.liveness import Beat, LivenessState, Verdict, judge
from pool.domain.redaction import redact
from pool.domain.replica import Phase, Report
from pool.domain.startup import warm_up_budget
from pool.models import Replica
from pool.ports import EngineDriver, EngineLoad, EngineProcess, EngineSpec
from pool.reconcilers.replicas import step_replica
from pool.services.replicas import Because, note, note_failure, report, seen
from workers.engines.errors import EngineUnreachable
from workers.log_tail import LogFollower
from workers.warmup import Recipe, WarmUpFailed, run_warm_up

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""While it comes up: half of the second within which an engine must be seen ready."""
LOAD_EVERY_S = 1.0
"""A scrape costs the engine 20 to 30 ms."""
PROGRESS_EVERY = timedelta(seconds=2)


@dataclass
class Watcher:
    """`recipe` is the warm-up of the release; `on_end` is called once when the thread ends."""

    spec: EngineSpec
    process: EngineProcess
    driver: EngineDriver
    recipe: Recipe
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.log = LogFollower(Path(self.process.log_path))
        self.liveness = LivenessState()
        self.progress_noted_at: datetime | None = None
        self.thread = threading.Thread(
            target=self._run, name=f"watch-{self.spec.replica_id}.{self.spec.generation}", daemon=True
        )

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                row = self._current_row()
                if row is None:
                    return
                pause = self._look(row)
            except (DatabaseError, InterfaceError) as exc:
                logger.info("replica %s: no database, watching on: %s", self.spec.replica_id, exc)
                pause = LOAD_EVERY_S
            finally:
                close_old_connections()
            self.stopping.wait(pause)

    def _current_row(self) -> Replica | None:
        """None when this generation is over."""
        return (
            Replica.objects.filter(pk=self.spec.replica_id, generation=self.spec.generation)
            .exclude(phase__in=["stopped", "failed", "pending"])
            .first()
        )

    def _look(self, row: Replica) -> float:
        now = timezone.now()
        self._note_log(row, now)
        match Phase(row.phase):
            case Phase.STARTING:
                report(seen(row), Report.PROCESS_STARTED, because=_STARTED, now=now, **process_values(self.process))
                return LOOK_EVERY_S
            case Phase.LOADING:
                return self._while_loading(row, now)
            case Phase.WARMING:
                return self._while_warming(row)
            case _:
                return self._while_serving(row)

    def _while_loading(self, row: Replica, now: datetime) -> float:
        health = self.driver.read_health(self.spec.address, engine_key=self.spec.engine_key)
        if not health.answers:
            return LOOK_EVERY_S
        figures = self.driver.read_figures(self.log.read_all())
        report(
            seen(row),
            Report.ENGINE_ANSWERS,
            because=Because("answers", "The engine answers; the warm-up recipe runs."),
            now=now,
            budget_s=int(warm_up_budget(self.recipe.budget).total_seconds()),
            max_model_len=figures.max_model_len,
            figures=row.figures | {"printed": figures_json(figures)},
        )
        return 0.0

    def _while_warming(self, row: Replica) -> float:
        try:
            result = run_warm_up(self.spec, self.recipe, cancelled=self.stopping.is_set)
        except WarmUpFailed as exc:
            if not self.stopping.is_set():
                self.fail(row, Failure(exc.kind, exc.code, exc.message))
            return LOAD_EVERY_S
        because = (
            Because("warm_up_cut", "Ready; the warm-up was cut by its budget.")
            if result.cut
            else Because("ready", "Warm-up done.")
        )
        report(
            seen(row),
            Report.WARMED_UP,
            because=because,
            now=timezone.now(),
            figures=row.figures | {"warm_up": result.as_json()},
            max_model_len=result.max_model_len or row.max_model_len,
            stage="",
        )
        return 0.0

    def _while_serving(self, row: Replica) -> float:
        now = timezone.now()
        load = self._read_load()
        if load is not None:
            note(seen(row), load=load_json(load), load_measured_at=now)
        if row.phase == Phase.READY:
            self._judge(row, load, now)
        return LOAD_EVERY_S

    def _read_load(self) -> EngineLoad | None:
        try:
            return self.driver.read_load(self.spec.address, engine_key=self.spec.engine_key)
        except EngineUnreachable:
            return None

    def _judge(self, row: Replica, load: EngineLoad | None, now: datetime) -> None:
        raise NotImplementedError

    def fail(self, row: Replica, failure: Failure) -> None:
        note_failure(seen(row), failure, log_tail=redact(self.log.tail()))
        step_replica(row.pk, timezone.now())

    def _note_log(self, row: Replica, now: datetime) -> None:
        grown = self.log.poll()
        due = self.progress_noted_at is None or now - self.progress_noted_at >= PROGRESS_EVERY
        if not grown or (not due and row.phase not in (Phase.LOADING, Phase.WARMING)):
            return
        self.progress_noted_at = now
        tail = self.log.tail()
        note(seen(row), progress_at=now, stage=self.driver.read_stage(tail)[:128], log_tail=redact(tail))
