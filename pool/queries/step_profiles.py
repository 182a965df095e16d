"""Profiler runs as people see them: how far each is, where its steps' time went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from pool.domain.step_profiles import KEPT_PER_REPLICA, OPEN, find_loss
from pool.models import StepProfile


@dataclass(frozen=True)
class ProfiledStep:
    """Seconds in all and by kind of kernel. `launches_s`: the host's time in launch calls; None without a device."""

    prefill_sequences: int
    prefill_tokens: int
    decode_sequences: int
    decode_tokens: int
    total_s: float
    parts_s: dict[str, float]
    launches_s: float | None
    launches: int


@dataclass(frozen=True)
class KernelRow:
    """`share`: of the steps' time."""

    name: str
    part: str
    seconds: float
    calls: int
    share: float | None


@dataclass(frozen=True)
class StepProfileRow:
    """`shares`: of the steps' time by kind of kernel, `between` is what is left; None without a result."""

    id: int
    replica: str
    generation: int
    is_current: bool
    """Of the generation that is in service now."""
    phase: str
    """waiting, running, done or failed."""
    reason: str
    """Stable code of a failed one."""
    reason_text: str
    steps_asked: int
    asked_by: str
    asked_at: datetime
    started_at: datetime | None
    done_at: datetime | None
    on_device: bool | None
    """Whether kernels are a device's; else each operation's own time on the host. None without a result."""
    steps_seen: int | None
    step_s: float | None
    """Mean time of a step."""
    shares: dict[str, float] | None
    launches_share: float | None
    """Host's time in launch calls, of the steps' time; it runs beside the kernels. None without a device."""
    launches_per_step: float | None


@dataclass(frozen=True)
class StepProfileView:
    """With the longest kernels. `flame`: `{name, value, children}`, seconds with those of the children."""

    profile: StepProfileRow
    steps: tuple[ProfiledStep, ...]
    kernels: tuple[KernelRow, ...]
    flame: dict[str, object] | None


def list_profiles(
    replica_id: str, *, now: datetime, limit: int = KEPT_PER_REPLICA, offset: int = 0
) -> tuple[StepProfileRow, ...]:
    """Newest first. 1 query."""
    rows = _of(replica_id).defer("flame")[offset : offset + limit]
    return tuple(_row(row, now=now) for row in rows)


def find_profile(replica_id: str, profile_id: int, *, now: datetime) -> StepProfileView | None:
    """1 query."""
    row = _of(replica_id).filter(pk=profile_id).first()
    return None if row is None else _view(row, now=now)


def find_newest(replica_id: str, *, now: datetime) -> tuple[StepProfileRow | None, StepProfileView | None]:
    """The newest run, and the newest with a result (without its flame graph). 1 query."""
    rows = list(_of(replica_id).defer("flame")[:KEPT_PER_REPLICA])
    newest = _row(rows[0], now=now) if rows else None
    result = next((row for row in rows if row.figures is not None), None)
    return newest, None if result is None else _view(result, now=now, with_flame=False)


def _of(replica_id: str) -> QuerySet[StepProfile]:
    return StepProfile.objects.filter(replica_id=replica_id).select_related("replica").order_by("-id")


def _view(row: StepProfile, *, now: datetime, with_flame: bool = True) -> StepProfileView:
    figures = row.figures or {}
    steps = tuple(ProfiledStep(**step) for step in figures.get("steps", ()))
    total = math.fsum(step.total_s for step in steps)
    return StepProfileView(
        profile=_row(row, now=now),
        steps=steps,
        kernels=tuple(
            KernelRow(**kernel, share=_ratio(kernel["seconds"], total))
            for kernel in figures.get("kernels", ())
        ),
        flame=row.flame if with_flame else None,
    )


def _row(row: StepProfile, *, now: datetime) -> StepProfileRow:
    phase, reason, text = _phase_of(row, now)
    figures = row.figures or {}
    steps = figures.get("steps") or ()
    total = math.fsum(step["total_s"] for step in steps)
    launches = [step["launches_s"] for step in steps]
    on_host = not steps or any(seconds is None for seconds in launches)
    return StepProfileRow(
        id=row.pk,
        replica=row.replica_id,
        generation=row.generation,
        is_current=row.generation == row.replica.generation,
        phase=phase,
        reason=reason,
        reason_text=text,
        steps_asked=row.steps_asked,
        asked_by=row.asked_by,
        asked_at=row.asked_at,
        started_at=row.started_at,
        done_at=row.done_at,
        on_device=figures.get("on_device"),
        steps_seen=len(steps) if row.figures is not None else None,
        step_s=_ratio(total, len(steps)),
        shares=_shares(steps, total),
        launches_share=None if on_host else _ratio(math.fsum(launches), total),
        launches_per_step=None if on_host else _ratio(sum(step["launches"] for step in steps), len(steps)),
    )


def _phase_of(row: StepProfile, now: datetime) -> tuple[str, str, str]:
    """What is open and can bring nothing any more is shown as failed, also where nobody has stored that yet."""
    if row.phase not in OPEN:
        return row.phase, row.reason_code, row.reason_text
    lost = find_loss(
        asked_at=row.asked_at,
        generation=row.generation,
        current_generation=row.replica.generation,
        replica_is_ready=row.replica.phase == "ready",
        now=now,
    )
    return (row.phase, "", "") if lost is None else ("failed", lost.code, lost.text)


def _shares(steps: Sequence[Mapping[str, Any]], total: float) -> dict[str, float] | None:
    if not total:
        return None
    parts = {name: math.fsum(step["parts_s"][name] for step in steps) / total for name in steps[0]["parts_s"]}
    return parts | {"between": max(0.0, 1.0 - math.fsum(parts.values()))}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
