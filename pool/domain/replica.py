"""Life of a replica: its phases, what may follow on what, and the next step of the control side.

The node carries out and reports; only a service writes a phase, by compare-and-swap, along MOVES.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from pool.domain.backoff import Failure, FailureKind, History, record_failure
from pool.domain.node import NodePhase

PLACEMENT_WAIT = timedelta(minutes=10)
"""Without a place for this long the wish is shown as failed; it is still looked at on every pass."""
INTENT_WAIT = timedelta(seconds=60)
"""A node acts on an intent within a second or so; waiting for a device's start lock counts as progress."""
QUIET_LIMIT = timedelta(minutes=2)
"""Longest silence of a sound start: one large shard from slow storage, one compile step."""
LONGEST_START = timedelta(hours=2)
"""A start that still makes progress after this long is a loop: 1 TB at 150 MB/s takes less."""
STOP_GRACE = timedelta(seconds=15)
"""An engine ends within 5 s of SIGTERM and the node then kills its group; three times that is a node in
trouble."""
MEMORY_WAIT = timedelta(seconds=60)
"""Memory that is not back this long after the process tree is gone is somebody else's, and is shown as
foreign."""
SILENT_GATEWAY_WAIT = timedelta(minutes=10)
"""Past the drain deadline a silent gateway may still stream, but an engine that never turns idle is
stopped in the end."""


class Phase(StrEnum):
    PENDING = "pending"
    """Wished, without a place. Control places it, or gives up after PLACEMENT_WAIT."""
    STARTING = "starting"
    """Place and generation fixed, start intent issued, no process yet. The node moves it on."""
    LOADING = "loading"
    """The process exists and does not serve yet. The node moves it on; control watches the start budget."""
    WARMING = "warming"
    """The engine answers and runs the warm-up recipe. The node moves it on; control watches the budget."""
    READY = "ready"
    """May take traffic. Control begins its drain; the node reports its death."""
    DRAINING = "draining"
    """Out of the routing table; what is in flight may finish. Control sends the stop, the node reports
    the end."""
    STOPPED = "stopped"
    """Process tree gone, memory back. A new wish moves it on."""
    FAILED = "failed"
    """Did not start or did not last; the failure says why. Control retries transient ones, an operator
    the others."""


_PLACED = frozenset(Phase) - {Phase.PENDING, Phase.STOPPED}

MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.STARTING, Phase.STOPPED, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.LOADING, Phase.DRAINING, Phase.FAILED, Phase.PENDING, Phase.STOPPED}),
    Phase.LOADING: frozenset({Phase.WARMING, Phase.DRAINING, Phase.FAILED, Phase.PENDING, Phase.STOPPED}),
    Phase.WARMING: frozenset({Phase.READY, Phase.DRAINING, Phase.FAILED, Phase.PENDING, Phase.STOPPED}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.FAILED, Phase.PENDING, Phase.STOPPED}),
    Phase.DRAINING: frozenset({Phase.STOPPED, Phase.PENDING}),
    Phase.STOPPED: frozenset({Phase.PENDING}),
    Phase.FAILED: frozenset({Phase.PENDING, Phase.STOPPED}),
}


class Wish(StrEnum):
    RUN = "run"
    """The replica should serve. Set when a release is scaled up."""
    STOP = "stop"
    """The replica should end. Set when a release is scaled down, drained or retired."""


class Engine(StrEnum):
    """What the node last said of the current generation's process tree."""

    UNSEEN = "unseen"
    """The node has not spoken of it yet: it may be about to start it."""
    RUNNING = "running"
    """At least one process of the tree lives."""
    ENDED = "ended"
    """The tree is gone, the devices' memory is not back yet."""
    GONE = "gone"
    """The tree is gone and its memory is back; also the answer to a stop where nothing ran."""


@dataclass(frozen=True, kw_only=True)
class Drain:
    deadline_at: datetime | None = None
    acknowledged: bool = False
    """Every gateway has said that it holds a table without this replica, or was seen to die."""
    silent_gateways: tuple[str, ...] = ()
    in_flight: int | None = None
    """Requests still running through the gateways, as told after their acknowledgement; None: not known."""
    engine_idle: bool | None = None
    """The engine's own running + waiting is 0; None: not known."""


@dataclass(frozen=True, kw_only=True)
class ReplicaFacts:
    phase: Phase
    phase_entered_at: datetime
    wanted: Wish = Wish.RUN
    restart_asked: bool = False
    """Set by an operator, cleared with Retry."""
    placeable: bool | None = None
    """Whether placement has an answer now; None: not tried (the replica has a place)."""
    placement_reason: str = ""
    node: NodePhase | None = None
    """Phase of the node that it is placed on; None: it has no place."""
    engine: Engine = Engine.UNSEEN
    failure: Failure | None = None
    """In `failed`: why. Before: what the node reported of the current generation (start error, death,
    hang)."""
    history: History = field(default_factory=History)
    next_retry_at: datetime | None = None
    routed: bool = False
    """A routing table of the current generation has named it: streams may run on it."""
    budget: timedelta = timedelta(minutes=10)
    """For the phase it is in: loading from `startup.load_budget`, warming from `startup.warm_up_budget`."""
    progress_at: datetime | None = None
    """The newest sign of progress (log line, bytes read, CPU used) in this phase."""
    drain: Drain = field(default_factory=Drain)
    stop_sent_at: datetime | None = None
    stop_forced: bool = False


@dataclass(frozen=True)
class Wait:
    reason: str


@dataclass(frozen=True)
class Place:
    """pending → starting: node, devices and port reserved, generation + 1, start intent, one transaction."""


@dataclass(frozen=True)
class Fail:
    """→ failed, with the history to store. `retry_at` None: an operator must act."""

    failure: Failure
    history: History
    retry_at: datetime | None


@dataclass(frozen=True)
class GiveUpPlacement(Fail):
    """pending → failed; nothing was started."""


@dataclass(frozen=True)
class Retry:
    """→ pending: place, process facts and drain facts are cleared, the history stays."""

    reason: str


@dataclass(frozen=True)
class BeginDrain:
    """→ draining: out of the routing table, deadline set."""

    reason: str


@dataclass(frozen=True)
class SendStop:
    """A stop intent for the current generation; the phase stays. `force`: SIGKILL of the group at once."""

    force: bool
    reason: str


@dataclass(frozen=True)
class MarkStopped:
    reason: str


@dataclass(frozen=True)
class Replace:
    """→ pending although the old node was not heard: the next generation fences what may still run there."""

    reason: str


Decision = Wait | Place | GiveUpPlacement | Retry | Fail | BeginDrain | SendStop | MarkStopped | Replace


def next_step(replica: ReplicaFacts, *, now: datetime) -> Decision:
    if replica.node is NodePhase.REPLACED and replica.phase in _PLACED:
        return _after_node_loss(replica)
    match replica.phase:
        case Phase.PENDING:
            return _while_pending(replica, now)
        case Phase.STARTING | Phase.LOADING | Phase.WARMING:
            return _while_coming_up(replica, now)
        case Phase.READY:
            return _while_ready(replica, now)
        case Phase.DRAINING:
            return _while_draining(replica, now)
        case Phase.FAILED:
            return _while_failed(replica, now)
        case _:  # stopped
            return Retry("wanted again") if replica.wanted is Wish.RUN else Wait("stopped")


def deadline_of(replica: ReplicaFacts) -> datetime | None:
    """When the phase is over at the latest as things stand; None for phases that last as long as they are
    wished."""
    match replica.phase:
        case Phase.PENDING:
            return replica.phase_entered_at + PLACEMENT_WAIT
        case Phase.STARTING | Phase.LOADING | Phase.WARMING:
            return _latest_end(replica)
        case Phase.DRAINING:
            return replica.drain.deadline_at
        case Phase.FAILED:
            return replica.next_retry_at
        case _:
            return None


def _latest_end(replica: ReplicaFacts) -> datetime:
    """The phase's budget, moved out while signs of progress come, but never past LONGEST_START."""
    budget = INTENT_WAIT if replica.phase is Phase.STARTING else replica.budget
    latest = replica.phase_entered_at + budget
    if replica.progress_at is not None:
        latest = max(latest, replica.progress_at + QUIET_LIMIT)
    return min(latest, replica.phase_entered_at + max(budget, LONGEST_START))


def _after_node_loss(replica: ReplicaFacts) -> Decision:
    if replica.wanted is Wish.STOP:
        return MarkStopped("its node is lost; if the node returns, it stops this generation")
    return Replace("its node is lost")


def _while_pending(replica: ReplicaFacts, now: datetime) -> Decision:
    if replica.wanted is Wish.STOP:
        return MarkStopped("not wanted any more; nothing had been started")
    if replica.placeable:
        return Place()
    if now - replica.phase_entered_at < PLACEMENT_WAIT:
        return Wait(replica.placement_reason or "placement has not been tried")
    failure = Failure(FailureKind.UNPLACED, "no_place", replica.placement_reason or "placement was not tried")
    history, retry_at = record_failure(replica.history, failure, ready_for=None, now=now)
    return GiveUpPlacement(failure, history, retry_at)


def _while_coming_up(replica: ReplicaFacts, now: datetime) -> Decision:
    reason = _leaving_reason(replica)
    if reason:
        return BeginDrain(reason)
    failure = _reported_failure(replica)
    if failure is None and now >= _latest_end(replica):
        if replica.node is NodePhase.UNREACHABLE:
            return Wait("its node is unreachable: the start is judged when the node returns or is replaced")
        failure = _overdue(replica)
    if failure is not None:
        return _fail(replica, failure, now=now, ready_for=None)
    return Wait(f"{replica.phase}; the node moves it on")


def _overdue(replica: ReplicaFacts) -> Failure:
    words = {
        Phase.STARTING: "the node did not start a process in time",
        Phase.LOADING: "the start ran over its budget without a sign of progress",
        Phase.WARMING: "the warm-up ran over its budget without a sign of progress",
    }
    return Failure(FailureKind.TRANSIENT, f"{replica.phase}_overdue", words[replica.phase])


def _while_ready(replica: ReplicaFacts, now: datetime) -> Decision:
    failure = _reported_failure(replica)
    if failure is not None:
        return _fail(replica, failure, now=now, ready_for=now - replica.phase_entered_at)
    reason = _leaving_reason(replica)
    if reason:
        return BeginDrain(reason)
    if replica.node is NodePhase.UNREACHABLE:
        return Wait("its node is unreachable; the engine is left alone and stays routed")
    return Wait("ready")


def _leaving_reason(replica: ReplicaFacts) -> str:
    if replica.wanted is Wish.STOP:
        return "not wanted any more"
    if replica.restart_asked:
        return "restart asked for"
    if replica.node is NodePhase.DRAINING:
        return "its node is being drained"
    return ""


def _reported_failure(replica: ReplicaFacts) -> Failure | None:
    if replica.failure is None and replica.engine in {Engine.ENDED, Engine.GONE}:
        return Failure(FailureKind.TRANSIENT, "engine_died", "the engine's processes ended without a word")
    return replica.failure


def _fail(replica: ReplicaFacts, failure: Failure, *, now: datetime, ready_for: timedelta | None) -> Fail:
    history, retry_at = record_failure(replica.history, failure, ready_for=ready_for, now=now)
    return Fail(failure, history, retry_at)


def _while_draining(replica: ReplicaFacts, now: datetime) -> Decision:
    if replica.engine is Engine.GONE:
        return MarkStopped("process tree gone, memory back")
    if replica.stop_sent_at is not None:
        return _after_stop(replica, replica.stop_sent_at, now)
    if replica.engine is Engine.ENDED:
        return SendStop(force=True, reason="the engine ended by itself while draining; its node clears up")
    if not replica.routed:
        return SendStop(force=True, reason="never routed: no stream can run on it")
    return _while_streams_finish(replica.drain, now)


def _while_streams_finish(drain: Drain, now: datetime) -> Decision:
    overdue = drain.deadline_at is not None and now >= drain.deadline_at
    if drain.acknowledged:
        if drain.in_flight == 0:
            return SendStop(force=False, reason="all gateways have let go, nothing is in flight")
        if overdue:
            return SendStop(force=False, reason="all gateways have let go, the deadline is over")
        return Wait(f"{'unknown' if drain.in_flight is None else drain.in_flight} requests in flight")
    waiting_for = ", ".join(drain.silent_gateways) or "gateways that are slow to acknowledge"
    if not overdue:
        return Wait(f"unrouted; waiting for {waiting_for}")
    if drain.engine_idle:
        return SendStop(force=False, reason=f"deadline over, engine idle; without word from {waiting_for}")
    if drain.deadline_at is not None and now >= drain.deadline_at + SILENT_GATEWAY_WAIT:
        return SendStop(force=False, reason=f"deadline long over; without word from {waiting_for}")
    return Wait(
        f"deadline over, but the engine is not known to be idle and there is no word from {waiting_for}"
    )


def _after_stop(replica: ReplicaFacts, sent_at: datetime, now: datetime) -> Decision:
    waited = now - sent_at
    if replica.engine is Engine.ENDED:
        if waited >= MEMORY_WAIT:
            return MarkStopped("process tree gone; its memory is not back and counts as foreign")
        return Wait("process tree gone; waiting for its memory")
    if not replica.stop_forced and waited >= STOP_GRACE:
        return SendStop(force=True, reason="the engine did not end in time")
    return Wait(
        "stopping" if waited < STOP_GRACE else "overdue: the node has not reported the end of the engine"
    )


def _while_failed(replica: ReplicaFacts, now: datetime) -> Decision:
    if not _cleared_up(replica, now):
        if replica.stop_sent_at is None or not replica.stop_forced:
            return SendStop(
                force=True, reason="failed: what is left of the engine is removed before anything else"
            )
        return Wait("waiting for the node to report that nothing is left of the engine")
    if replica.wanted is Wish.STOP:
        return MarkStopped("not wanted any more")
    if replica.restart_asked:
        return Retry("an operator asked for a new try")
    if replica.failure is not None and replica.failure.kind is FailureKind.UNPLACED and replica.placeable:
        return Retry("there is a place now")
    if replica.next_retry_at is None:
        return Wait("given up: an operator must change something, or ask for a new try")
    if now < replica.next_retry_at:
        return Wait("backing off before the next try")
    return Retry("next try")


def _cleared_up(replica: ReplicaFacts, now: datetime) -> bool:
    if replica.node is None or replica.engine is Engine.GONE:
        return True
    waited = now - (replica.stop_sent_at or now)
    return replica.engine is Engine.ENDED and waited >= MEMORY_WAIT


class Report(StrEnum):
    """What a node may say of the current generation while it comes up."""

    PROCESS_STARTED = "process_started"
    ENGINE_ANSWERS = "engine_answers"
    WARMED_UP = "warmed_up"


_REPORT_MOVES = {
    Report.PROCESS_STARTED: (Phase.STARTING, Phase.LOADING),
    Report.ENGINE_ANSWERS: (Phase.LOADING, Phase.WARMING),
    Report.WARMED_UP: (Phase.WARMING, Phase.READY),
}


def phase_after(phase: Phase, report: Report) -> Phase | None:
    """The phase that the node's report leads to; None: the report is late or repeated and changes nothing."""
    source, target = _REPORT_MOVES[report]
    return target if phase is source else None
