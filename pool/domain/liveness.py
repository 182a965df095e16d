"""Whether an engine serves: judged by progress, not by /health, which stays 200 while an engine hangs.

Pure: looks and probe results in, a next action out. A probe is one tiny completion; it is asked for when work
waits and nothing moves, and rarely while idle. Anything that moves clears all suspicion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

PROBE_FAILURES = 3
"""One late probe is a busy engine; three in a row without anything moving are a hang (FC-26)."""
STALL_LIMIT = timedelta(seconds=8)
"""Under continuous batching a step takes up to 2 s on `cpu`; four times that without a move asks a probe."""
IDLE_PROBE_EVERY = timedelta(seconds=60)
"""An idle engine that hangs is found before its first request; costs one token a minute."""
PROBE_BUDGET = timedelta(seconds=5)
"""For an engine without a queue."""
BUDGET_PER_REQUEST = timedelta(milliseconds=500)
"""A probe stands behind what is queued: its budget grows with it."""
LONGEST_BUDGET = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at an engine. None: not known, which is never taken as 0.

    `marks` are counters and gauges any change of which is progress (tokens, finished requests, KV use).
    `in_flight` and `answered_at` are the gateways' own: an engine that hangs shows stale gauges.
    """

    at: datetime
    answers: bool
    running: int | None = None
    waiting: int | None = None
    marks: tuple[float | None, ...] = ()
    in_flight: int | None = None
    answered_at: datetime | None = None

    @property
    def work(self) -> int:
        """Requests that should make progress now, by whoever knows of more."""
        return max((self.running or 0) + (self.waiting or 0), self.in_flight or 0)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`longest_step`: how long a sound replica may be silent, from its warm-up (one longest prefill)."""

    longest_step: timedelta = timedelta(0)
    idle_probe_every: timedelta = IDLE_PROBE_EVERY

    @property
    def stall(self) -> timedelta:
        return max(STALL_LIMIT, self.longest_step)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is remembered between looks. `moved_at` is the newest progress."""

    moved_at: datetime
    marks: tuple[float | None, ...] = ()
    answered_at: datetime | None = None
    probed_at: datetime | None = None
    failed_probes: int = 0


@dataclass(frozen=True)
class Serving:
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    """Send one tiny completion and give it this long; then record_probe()."""

    budget: timedelta
    reason: str


@dataclass(frozen=True)
class Hung:
    """Out of routing at once, then restarted. `silent_for`: since the newest progress."""

    reason: str
    silent_for: timedelta


Action = Serving | Probe | Hung


def begin_watch(now: datetime) -> Watch:
    """From the end of the warm-up: its completions were progress."""
    return Watch(moved_at=now, probed_at=now)


def take_look(watch: Watch, look: Look) -> Watch:
    """The watch after a look: changed marks and new answers at a gateway are progress."""
    known = watch.marks and len(watch.marks) == len(look.marks)
    changed = bool(known) and any(
        new is not None and old is not None and new != old
        for old, new in zip(watch.marks, look.marks, strict=True)
    )
    answered = look.answered_at is not None and (
        watch.answered_at is None or look.answered_at > watch.answered_at
    )
    moved = replace(
        watch,
        marks=_merge(watch.marks, look.marks),
        answered_at=look.answered_at if answered else watch.answered_at,
    )
    if changed or (answered and watch.answered_at is not None):
        return replace(moved, moved_at=look.at, failed_probes=0)
    return moved


def record_probe(watch: Watch, *, succeeded: bool, at: datetime) -> Watch:
    if succeeded:
        return replace(watch, probed_at=at, moved_at=at, failed_probes=0)
    return replace(watch, probed_at=at, failed_probes=watch.failed_probes + 1)


def next_action(watch: Watch, look: Look, *, limits: Limits | None = None, now: datetime) -> Action:
    """At most one probe at a time: call again after record_probe()."""
    limits = limits or Limits()
    silent_for = now - watch.moved_at
    if watch.failed_probes >= PROBE_FAILURES and silent_for >= limits.stall:
        return Hung(f"{watch.failed_probes} probes failed and nothing moved", silent_for)
    if watch.failed_probes:
        return Probe(_budget(look), "the last probe failed")
    if not look.answers:
        return Probe(_budget(look), "its API does not answer")
    if look.work > 0:
        if silent_for >= limits.stall:
            return Probe(_budget(look), "work waits and nothing moves")
        return Serving("work moves")
    if watch.probed_at is None or now - max(watch.probed_at, watch.moved_at) >= limits.idle_probe_every:
        return Probe(_budget(look), "idle for long")
    return Serving("idle")


def _budget(look: Look) -> timedelta:
    return min(LONGEST_BUDGET, PROBE_BUDGET + look.work * BUDGET_PER_REQUEST)


def _merge(old: tuple[float | None, ...], new: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """A mark that is missing this time keeps its last value: its return is not a move."""
    if len(old) != len(new):
        return new
    return tuple(after if after is not None else before for before, after in zip(old, new, strict=True))
