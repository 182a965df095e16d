"""The loop of one node: carries out intents, adopts and watches engines, stops what is not in service.

Works from PostgreSQL and the keeper's list alone; every pass may be cut anywhere. Without PostgreSQL no pass
begins, so nothing is started or stopped.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from django.utils import timezone

from pool.domain.backoff import Failure, FailureKind
from pool.domain.redaction import redact
from pool.models import Intent, Node, Replica
from pool.ports import EngineHost, EngineProcess
from pool.reconcilers.replicas import step_replica
from pool.services.intents import claim_intent, finish_intent, list_open_intents
from pool.services.nodes import renew_lease, store_facts
from pool.services.replicas import note, note_failure, seen
from workers.engine_start import EngineKey, EngineStarter, StartRefused
from workers.golden_asking import GoldenAsker
from workers.jobs import Jobs
from workers.log_tail import LogFollower
from workers.replica_trace import WatchedEngine
from workers.step_profiling import StepProfiler
from workers.watcher import Watcher

logger = logging.getLogger(__name__)

TERM_GRACE_S = 5.0
"""vLLM ends within 0.8 s of SIGTERM when idle; the rest of its group is then killed."""
KILL_LIMIT_S = 5.0
"""A killed group is gone at once unless the kernel waits for a device."""
MEMORY_LIMIT_S = 30.0
"""The driver gives memory back within a second; the loop looks again after this."""
ACTIVE = ("starting", "loading", "warming", "ready", "draining")


class NodeTaken(Exception):
    """Another worker holds this node's name now; this one must not act."""


@dataclass
class Supervisor:
    node: Node
    holder: uuid.UUID
    host: EngineHost
    starter: EngineStarter
    memory_is_back: Callable[[EngineProcess], bool]
    jobs: Jobs = field(default_factory=Jobs)
    watchers: dict[EngineKey, Watcher] = field(default_factory=dict)
    engines: dict[EngineKey, EngineProcess] = field(default_factory=dict)
    """As the keeper listed them at the newest pass."""
    has_passed: bool = False
    profiler: StepProfiler = field(init=False)
    golden: GoldenAsker = field(init=False)

    def __post_init__(self) -> None:
        self.profiler = StepProfiler(
            self.holder,
            self.starter.make_spec,
            find_watcher=lambda replica_id, generation: self.watchers.get((replica_id, generation)),
        )
        self.golden = GoldenAsker(self.holder, self.starter.make_spec)

    def run_pass(self, now: datetime) -> dict[str, object]:
        if not renew_lease(self.node, holder=self.holder, now=now):
            raise NodeTaken(f"node {self.node.name} is held by another worker")
        engines = self.engines = {(e.replica_id, e.generation): e for e in self.host.list_engines()}
        rows = {row.pk: row for row in self._load_rows(engines)}
        strays = self._stop_strays(engines, rows)
        for intent in list_open_intents(self.node):
            self._carry_out(intent, engines.get((intent.replica_id, intent.generation)))
        for row in rows.values():
            if row.node_id == self.node.pk and row.phase in ACTIVE:
                self._observe(row, engines.get((row.pk, row.generation)))
        self._report_strays(strays)
        coming = (row for row in rows.values() if row.phase in ("starting", "loading"))
        self.starter.release_locks(starting=frozenset((row.pk, row.generation) for row in coming))
        self.watchers = {key: watcher for key, watcher in self.watchers.items() if watcher.alive}
        self.has_passed = True
        return {}

    def _load_rows(self, engines: dict[EngineKey, EngineProcess]) -> list[Replica]:
        here = Replica.objects.filter(node=self.node, phase__in=[*ACTIVE, "failed"])
        known = Replica.objects.filter(pk__in=[replica_id for replica_id, _ in engines])
        return list((here | known).select_related("release__version", "release__model").distinct())

    # What is not in service -------------------------------------------------------------------------------

    def _stop_strays(self, engines: dict[EngineKey, EngineProcess], rows: dict[str, Replica]) -> int:
        """Engines of older generations, or that the pool gave up: stopped here, because traffic is fenced already."""
        strays = 0
        for key, engine in engines.items():
            row = rows.get(key[0])
            current = row is not None and row.generation == key[1] and row.node_id == self.node.pk
            if current and row is not None and row.phase != "stopped":
                continue
            if engine.running:
                strays += 1
                logger.warning("engine %s.%s is not in service: stopping it", *key)
                self.jobs.submit(("end", *key), partial(self._end_stray, engine))
            else:
                self.host.forget(key[0], generation=key[1])
        return strays

    def _end_stray(self, engine: EngineProcess) -> None:
        self.end_engine(engine, force=False)

    def _report_strays(self, strays: int) -> None:
        if self.node.facts.get("stale_engines") != strays:
            store_facts(self.node, stale_engines=strays)

    # Intents ----------------------------------------------------------------------------------------------

    def _carry_out(self, intent: Intent, engine: EngineProcess | None) -> None:
        if intent.action == "profile":
            self.profiler.carry_out(intent)
            return
        if intent.action == "golden":
            self.golden.carry_out(intent)
            return
        key = (intent.action, intent.replica_id, intent.generation)
        if self.jobs.is_running(key) or not (
            claim_intent(intent, holder=self.holder, now=timezone.now()) or intent.claimed_by == self.holder
        ):
            return
        if intent.action == "start":
            self.jobs.submit(key, lambda: self._start(intent, engine))
        else:
            self.jobs.submit(key, lambda: self._stop(intent, engine))

    def _start(self, intent: Intent, engine: EngineProcess | None) -> None:
        row = intent.replica
        try:
            result = "adopted" if engine is not None else "started"
            if engine is None:
                self.starter.start(row)
        except StartRefused as exc:
            note_failure(seen(row), exc.failure, engine="gone")
            finish_intent(intent, holder=self.holder, now=timezone.now(), result=exc.reason_code, failed=True)
            step_replica(row.pk, timezone.now())
            return
        finish_intent(intent, holder=self.holder, now=timezone.now(), result=result)

    def _stop(self, intent: Intent, engine: EngineProcess | None) -> None:
        row = intent.replica
        if engine is not None:
            if not self.end_engine(engine, force=intent.action == "kill"):
                return
            note(seen(row), log_tail=redact(LogFollower.at(engine.log_path).tail()), engine="ended", pid=None)
        if engine is None or self._wait_for_memory(engine):
            note(seen(row), engine="gone", pid=None)
        finish_intent(intent, holder=self.holder, now=timezone.now(), result="ended")
        step_replica(row.pk, timezone.now())

    def end_engine(self, engine: EngineProcess, *, force: bool) -> bool:
        """SIGTERM, five seconds, then SIGKILL of the whole session. True when nothing of it is left."""
        watcher = self.watchers.get((engine.replica_id, engine.generation))
        if watcher is not None:
            watcher.stop()
        grace_s = 0.0 if force else TERM_GRACE_S
        self.host.stop(engine.replica_id, generation=engine.generation, grace_s=grace_s)
        deadline = time.monotonic() + grace_s + KILL_LIMIT_S
        while time.monotonic() < deadline:
            current = self.host.find_engine(engine.replica_id, generation=engine.generation)
            if current is None or not current.running:
                return True
            time.sleep(0.05)
        return False

    def _wait_for_memory(self, engine: EngineProcess) -> bool:
        """Ended and forgotten is back too: the keeper keeps records of what still holds something."""
        deadline = time.monotonic() + MEMORY_LIMIT_S
        while time.monotonic() < deadline:
            current = self.host.find_engine(engine.replica_id, generation=engine.generation)
            if current is None or self.memory_is_back(current):
                return True
            time.sleep(0.2)
        return False

    # What runs --------------------------------------------------------------------------------------------

    def _observe(self, row: Replica, engine: EngineProcess | None) -> None:
        if engine is None:
            self._note_absent(row)
        elif not engine.running:
            self._note_end(row, engine)
        else:
            self._watch(row, engine)

    def _note_absent(self, row: Replica) -> None:
        """No record of this generation: never started here, or the host lost it."""
        starting = row.phase == "starting" or self.jobs.is_running(("start", row.pk, row.generation))
        if starting or row.engine == "gone":
            return
        if row.phase == "draining":
            note(seen(row), engine="gone", pid=None)
        else:
            failure = Failure(FailureKind.TRANSIENT, "engine_lost", "The host has no such engine any more.")
            note_failure(seen(row), self._unless_stopped(failure), engine="gone", pid=None)
        step_replica(row.pk, timezone.now())

    def _note_end(self, row: Replica, engine: EngineProcess) -> None:
        if row.engine == "gone" or self.jobs.is_running(("stop", row.pk, row.generation)):
            return
        state = "gone" if self.memory_is_back(engine) else "ended"
        if row.phase == "draining" or row.failure_kind:
            if row.engine != state:
                note(seen(row), engine=state, pid=None)
                step_replica(row.pk, timezone.now())
            return
        tail = LogFollower.at(engine.log_path).tail()
        failure = self.starter.explain_end(row, engine, tail)
        failure = self._unless_stopped(failure)
        note_failure(seen(row), failure, engine=state, pid=None, log_tail=redact(tail))
        step_replica(row.pk, timezone.now())

    def _unless_stopped(self, failure: Failure) -> Failure:
        """What this worker finds ended when it comes ended while nobody watched: with its host or installation."""
        if self.has_passed:
            return failure
        text = "It ended while no worker ran on this node: the host or the installation was stopped."
        return Failure(FailureKind.INTERRUPTED, "host_stopped", text)

    def _watch(self, row: Replica, engine: EngineProcess) -> None:
        key = (row.pk, row.generation)
        if any(self.jobs.is_running((job, *key)) for job in ("end", "stop", "kill")):
            return
        # A forked engine has its pid only once its runtime's fork server has imported what it needs.
        if (row.engine, row.pid) != ("running", engine.pid):
            note(seen(row), engine="running", pid=engine.pid, pid_started_ticks=engine.started_ticks)
        watcher = self.watchers.get(key)
        if watcher is not None and watcher.alive:
            return
        self.watchers[key] = self.starter.watch(row, engine)
        self.watchers[key].start()

    def list_watched(self) -> list[WatchedEngine]:
        """What runs and is in service. For other threads: a pass may change it meanwhile."""
        engines = self.engines
        return [
            WatchedEngine(watcher.spec, watcher.release, watcher.lane, engines[key].members)
            for key, watcher in list(self.watchers.items())
            if watcher.alive and key in engines and engines[key].running
        ]

    def close(self) -> None:
        """Stops watching; the engines go on serving."""
        for watcher in self.watchers.values():
            watcher.stop()
        self.jobs.close()
