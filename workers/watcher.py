"""Follows one running engine from its first sign of life to its end, in a thread of its own.

It reports to PostgreSQL by compare-and-set, so a watcher of an older generation changes nothing. Without
PostgreSQL it waits; it never starts, stops or kills anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from pool.domain.backoff import Failure, FailureKind
from pool.domain.liveness import (
    Hung,
    Limits,
    Look,
    Probe,
    Serving,
    Watch,
    begin_watch,
    next_action,
    record_probe,
    take_look,
)
from pool.domain.redaction import redact
from pool.domain.replica import Phase, Report
from pool.domain.start_errors import StartFailure
from pool.domain.startup import warm_up_budget
from pool.models import Replica
from pool.ports import EngineDriver, EngineLoad, EngineProcess, EngineSpec
from pool.queries.acknowledgements import count_in_flight, list_live_gateways
from pool.reconcilers.replicas import step_replica
from pool.services.replicas import Because, note, note_failure, report, seen
from workers.engines.http import EngineUnreachable
from workers.log_tail import LogFollower
from workers.warmup import (
    WarmUpCancelled,
    WarmUpFailed,
    WarmUpFigures,
    WarmUpRecipe,
    WarmUpTarget,
    probe_engine,
    warm_up,
)

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""While it comes up: well within the second in which an engine must be seen ready."""
BUSY_EVERY_S = 2.0
PRESSED_EVERY_S = 1.0
"""While requests wait in it or its KV cache fills: gateways decide by these figures."""
PRESSED_KV_RATIO = 0.6
IDLE_EVERY_S = 5.0
"""A scrape costs the engine 20 to 30 ms; an idle one is looked at for its death only, which its keeper sees."""
SCRAPE_EVERY_S = 5.0
"""Of an engine whose step ring says the rest."""
DRAIN_EVERY_S = 0.5
RETRY_S = 1.0
TAIL_EVERY = timedelta(seconds=2)
_STARTED = Because("process_started", "The engine's process runs; it loads.")
_LOAD_MARKS = ("generation_tokens", "prompt_tokens", "finished_requests", "kv_usage_ratio")


@dataclass
class Watcher:
    """One per running engine. `recipe` is the warm-up of its release."""

    spec: EngineSpec
    process: EngineProcess
    driver: EngineDriver
    recipe: WarmUpRecipe
    release: int = 0
    lane: str = ""
    on_load: Callable[[EngineSpec, EngineLoad], object] = lambda spec, load: None
    """Told of each reading while it serves."""
    live_load: Callable[[EngineSpec], EngineLoad | None] = lambda spec: None
    """What its step ring says of an engine that makes steps; None while it makes none, or has no ring."""
    scraped: EngineLoad | None = None
    scraped_at: datetime | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    watch: Watch | None = None
    tail_at: datetime | None = None
    excused_until: datetime | None = None
    """Until then it may stand still: a profile is taken of it."""

    def __post_init__(self) -> None:
        self.log = LogFollower(Path(self.process.log_path))
        name = f"watch-{self.spec.replica_id}.{self.spec.generation}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def excuse(self, until: datetime | None) -> None:
        """For another thread: what stands still until then does not hang. None: judge it again."""
        self.excused_until = until

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def _run(self) -> None:
        while not self.stopping.is_set():
            pause = RETRY_S
            try:
                row = self._current_row()
                if row is None:
                    return
                pause = self._look(row)
            except (DatabaseError, InterfaceError) as exc:
                logger.info("replica %s: no database, watching on: %s", self.spec.replica_id, exc)
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
        """One look at the engine; returns how long to wait before the next."""
        now = timezone.now()
        self._note_log(row, now)
        match Phase(row.phase):
            case Phase.STARTING:
                values = {
                    "engine": "running",
                    "pid": self.process.pid,
                    "pid_started_ticks": self.process.started_ticks,
                }
                report(seen(row), Report.PROCESS_STARTED, because=_STARTED, now=now, **values)
                return 0.0
            case Phase.LOADING:
                return self._while_loading(row, now)
            case Phase.WARMING:
                return self._while_warming(row)
            case _:
                return self._while_serving(row, now)

    def _while_loading(self, row: Replica, now: datetime) -> float:
        if not self.driver.read_health(self.spec.address, engine_key=self.spec.engine_key).answers:
            return LOOK_EVERY_S
        printed = asdict(self.driver.read_figures(self.log.read_all()))
        budget = warm_up_budget(timedelta(seconds=self.recipe.budget_s))
        report(
            seen(row),
            Report.ENGINE_ANSWERS,
            because=Because("answers", "The engine answers; the warm-up recipe runs."),
            now=now,
            stage="warming up",
            budget_s=int(budget.total_seconds()),
            max_model_len=printed.get("max_model_len") or row.max_model_len,
            figures=row.figures | {"printed": printed},
        )
        return 0.0

    def _while_warming(self, row: Replica) -> float:
        target = WarmUpTarget(
            self.spec.address, self.spec.served_model_name, self.spec.engine_key, row.max_model_len
        )
        try:
            figures = warm_up(target, self.recipe, cancelled=self.stopping)
        except WarmUpCancelled:
            return 0.0
        except WarmUpFailed as exc:
            self._fail(row, failure_from(exc.failure))
            return RETRY_S
        except EngineUnreachable as exc:
            self._fail(row, Failure(FailureKind.TRANSIENT, "engine_died", exc.message))
            return RETRY_S
        self._report_ready(row, figures)
        return 0.0

    def _report_ready(self, row: Replica, figures: WarmUpFigures) -> None:
        because = Because("ready", "Warm-up done.")
        if figures.reason:
            because = Because(figures.reason, "Ready; the warm-up was cut by its budget.")
        report(
            seen(row),
            Report.WARMED_UP,
            because=because,
            now=timezone.now(),
            stage="",
            figures=row.figures | {"warm_up": asdict(figures)},
        )

    def _while_serving(self, row: Replica, now: datetime) -> float:
        live = self.live_load(self.spec) if row.phase == Phase.READY else None
        if live is not None and self.scraped is not None and self._was_scraped_within(now):
            # Steps are progress, and their ring costs the engine nothing.
            found = {name: value for name, value in asdict(live).items() if value is not None}
            note(seen(row), load=asdict(self.scraped) | found, load_measured_at=now)
            return BUSY_EVERY_S
        load = self._read_load()
        if load is not None:
            self.scraped, self.scraped_at = load, now
            note(seen(row), load=asdict(load), load_measured_at=now)
            self.on_load(self.spec, load)
        if row.phase != Phase.READY:
            return DRAIN_EVERY_S
        busy = self._judge(row, load, now)
        if load is not None and _is_pressed(load):
            return min(PRESSED_EVERY_S, BUSY_EVERY_S)
        return BUSY_EVERY_S if busy else IDLE_EVERY_S

    def _was_scraped_within(self, now: datetime) -> bool:
        return self.scraped_at is not None and now - self.scraped_at < timedelta(seconds=SCRAPE_EVERY_S)

    def _read_load(self) -> EngineLoad | None:
        try:
            return self.driver.read_load(self.spec.address, engine_key=self.spec.engine_key)
        except EngineUnreachable:
            return None

    def _judge(self, row: Replica, load: EngineLoad | None, now: datetime) -> bool:
        """Progress decides; a hung engine answers /health for ever (FC-01). True while it is to be watched closely."""
        excused_until = self.excused_until
        if excused_until is not None and now < excused_until:
            self.watch = begin_watch(now)
            return True
        self.watch = self.watch or begin_watch(now)
        look = Look(
            at=now,
            answers=load is not None,
            running=load.running if load else None,
            waiting=load.waiting if load else None,
            marks=tuple(getattr(load, mark) for mark in _LOAD_MARKS) if load else (None,) * len(_LOAD_MARKS),
            in_flight=count_in_flight(list_live_gateways(now), row.pk),
        )
        self.watch = take_look(self.watch, look)
        action = next_action(self.watch, look, limits=limits_of(row), now=now)
        if isinstance(action, Probe):
            close_old_connections()
            succeeded = probe_engine(
                self.spec.address,
                model=self.spec.served_model_name,
                engine_key=self.spec.engine_key,
                timeout_s=action.budget.total_seconds(),
            )
            self.watch = record_probe(self.watch, succeeded=succeeded, at=timezone.now())
        elif isinstance(action, Hung):
            text = f"The engine hangs: {action.reason} for {action.silent_for.total_seconds():.0f} s. It is restarted."
            self._fail(row, Failure(FailureKind.TRANSIENT, "hung", text))
        return look.work > 0 or not isinstance(action, Serving)

    def _fail(self, row: Replica, failure: Failure) -> None:
        if not self.stopping.is_set():
            note_failure(seen(row), failure, log_tail=redact(self.log.tail()))
            step_replica(row.pk, timezone.now())

    def _note_log(self, row: Replica, now: datetime) -> None:
        coming_up = row.phase in (Phase.STARTING, Phase.LOADING, Phase.WARMING)
        due = coming_up or self.tail_at is None or now - self.tail_at >= TAIL_EVERY
        if not due or not self.log.poll():
            return
        self.tail_at = now
        tail = self.log.tail()
        values: dict[str, object] = {"log_tail": redact(tail)}
        if coming_up:
            values |= {"progress_at": now, "stage": self.driver.read_stage(tail)[:128]}
        note(seen(row), **values)


def _is_pressed(load: EngineLoad) -> bool:
    return bool(load.waiting) or (load.kv_usage_ratio or 0.0) >= PRESSED_KV_RATIO


def failure_from(found: StartFailure) -> Failure:
    kind = FailureKind.PERMANENT if found.permanent else FailureKind.TRANSIENT
    return Failure(kind, str(found.code), f"{found.message} {found.advice}".strip())


def limits_of(row: Replica) -> Limits:
    """A sound replica may be silent for one longest prefill, at the rate that its warm-up measured."""
    rate = (row.figures.get("warm_up") or {}).get("prefill_tokens_per_s")
    if not rate or not row.max_model_len:
        return Limits()
    return Limits(longest_step=timedelta(seconds=2 * row.max_model_len / rate))
