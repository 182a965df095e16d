"""Whether the pool has room for a candidate, and what stable gives up for it where an operator has accepted that.

A swap goes: candidate asked for → looked at again → stable's named replicas drained and stopped → the candidate placed
on the memory that is measured free. On the way back the same in the other direction: neither waits for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from pool.domain.fit_report import FitOutcome, FitReport
from pool.domain.release_diff import ReleaseDiff, Warn
from pool.domain.rollout import Enter, Phase, Step, Wait
from pool.models import Release, Replica, Rollout, Scale
from pool.queries.fit_reports import load_fit_report
from pool.queries.release_diffs import load_diff
from pool.services.errors import Conflict

PATIENCE = 3
"""Times the stated outage, after which a swap is given up before it served anybody."""
LEAST_PATIENCE_S = 600


@dataclass(frozen=True)
class Reports:
    """`steps`: as the rollout would go by them. `refusal`: why a start would be refused for want of room; empty: it
    would not."""

    diff: ReleaseDiff
    fit: FitReport
    steps: tuple[Step, ...]
    warnings: tuple[Warn, ...]
    refusal: str

    def as_json(self) -> dict[str, Any]:
        """`{diff, fit, steps: [{weight, soak_s, min_requests, lanes}], warnings: [{code, text}], refusal}`; `diff` and
        `fit` as `ReleaseDiff.as_json` and `FitReport.as_json` have them."""
        return {
            "diff": self.diff.as_json(),
            "fit": self.fit.as_json(),
            "steps": [asdict(step) for step in self.steps],
            "warnings": [asdict(warning) for warning in self.warnings],
            "refusal": self.refusal,
        }


def load_reports(
    candidate: Release,
    stable: Release,
    scales: Sequence[tuple[str, int]],
    *,
    steps: tuple[Step, ...],
    accept_outage: bool,
    now: datetime,
) -> Reports:
    """What a start would find. Reads only."""
    diff = load_diff(candidate, stable)
    fit = load_fit_report(candidate, stable, scales, steps=len(steps), now=now)
    if _stops_all(fit) and steps != _at_once(steps):
        steps = _at_once(steps)
        fit = load_fit_report(candidate, stable, scales, steps=len(steps), now=now)
    warnings = (*diff.warnings, *_fit_warnings(fit))
    return Reports(diff, fit, steps, warnings, _refusal(fit, accept_outage=accept_outage))


def refuse_without_room(reports: Reports) -> None:
    """Raises Conflict where the candidate has no place, or only one that costs an outage which nobody accepted."""
    if not reports.refusal:
        return
    fit = reports.fit
    raise Conflict(
        reports.refusal,
        outcome=str(fit.outcome),
        missing=list(fit.missing),
        outage_s=fit.outage.seconds if fit.outage else None,
        stops=[row.replica for row in fit.swap],
    )


def plan_swap(stable: Release, fit: FitReport) -> dict[str, Any]:
    """What `Rollout.swap` stores; empty where nothing of stable has to stop."""
    if fit.outcome is not FitOutcome.SWAP_ONLY:
        return {}
    fewer = Counter(row.lane or "" for row in fit.swap)
    before = dict(Scale.objects.filter(release=stable).values_list("lane", "replicas"))
    return {
        "replicas": [row.replica for row in fit.swap],
        "scales": [
            [lane, before.get(lane, 0), max(0, before.get(lane, 0) - count)] for lane, count in fewer.items()
        ],
        "is_full": _stops_all(fit),
        "made": False,
    }


def look_after_room(rollout: Rollout, *, now: datetime) -> Enter | Wait | None:
    """Before the first weight of a swap: stops what of stable was accepted to stop, once, if the pool still is as it
    was; and gives the room back where the candidate takes far longer than was said. None: nothing is in the way.

    Inside a transaction that holds the model's lock.
    """
    if not rollout.swap or rollout.weighted_at is not None:
        return None
    if has_swapped(rollout):
        return _find_overdue(rollout, now)
    return _make_room(rollout, now) if rollout.phase == Phase.PREPARING else None


def _make_room(rollout: Rollout, now: datetime) -> Enter | Wait | None:
    scales = [(lane, count) for lane, count in rollout.scales]
    fit = load_fit_report(rollout.candidate, rollout.stable, scales, steps=len(rollout.steps), now=now)
    if fit.outcome is FitOutcome.UNKNOWN:
        return Wait(f"room is looked for before anything of stable stops: {fit.text}")
    accepted = set(rollout.swap["replicas"])
    named = {row.replica for row in fit.swap}
    if fit.outcome is not FitOutcome.SWAP_ONLY or fit.stop or not named <= accepted:
        text = (
            f"Room is another now than it was at the start; nothing was stopped. Start it again. {fit.text}"
        )
        return Enter(Phase.FAILED, "room_changed", text)
    _lower(rollout, named)
    rollout.swap = rollout.swap | {"made": True, "made_at": now.isoformat()}
    Rollout.objects.filter(pk=rollout.pk).update(swap=rollout.swap)
    return None


def _find_overdue(rollout: Rollout, now: datetime) -> Enter | None:
    """A length that was never measured has no limit but that of the phase."""
    outage = rollout.fit.get("outage") or {}
    if outage.get("seconds") is None:
        return None
    limit_s = max(LEAST_PATIENCE_S, PATIENCE * outage["seconds"])
    if (now - datetime.fromisoformat(rollout.swap["made_at"])).total_seconds() < limit_s:
        return None
    text = (
        f"The candidate is not ready {limit_s:.0f} s after stable stopped for it, and about {outage['seconds']:.0f} s "
        "were said. Stable gets its room back."
    )
    return Enter(Phase.FAILED, "outage_too_long", text)


def has_swapped(rollout: Rollout) -> bool:
    """Stable has been asked to give its room up."""
    return bool(rollout.swap.get("made"))


def give_room_back(rollout: Rollout) -> None:
    """Stable is wished as before. Replicas of the candidate have to go for it: `_put_scales_back` of the moves."""
    if not has_swapped(rollout):
        return
    for lane, before, _ in rollout.swap["scales"]:
        Scale.objects.filter(release_id=rollout.stable_id, lane=lane, replicas__lt=before).update(
            replicas=before
        )


def _lower(rollout: Rollout, named: set[str]) -> None:
    """The scale first: its row is what the loop that makes replicas locks."""
    for lane, _, during in rollout.swap["scales"]:
        Scale.objects.filter(release_id=rollout.stable_id, lane=lane, replicas__gt=during).update(
            replicas=during
        )
    Replica.objects.filter(pk__in=named, release_id=rollout.stable_id).update(wish="stop")


def _stops_all(fit: FitReport) -> bool:
    return fit.outage is not None and fit.outage.is_full


def _at_once(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """With nothing left of stable in a lane there is nothing to share traffic with, nor to compare with."""
    return (replace(steps[-1], weight=100, lanes=()),)


def _refusal(fit: FitReport, *, accept_outage: bool) -> str:
    if fit.outcome is FitOutcome.IMPOSSIBLE:
        return f"{fit.text} Free the room, or ask for fewer replicas."
    if fit.outcome is not FitOutcome.SWAP_ONLY:
        return ""
    if fit.stop:
        names = ", ".join(row.replica for row in fit.stop)
        return f"{fit.text} Stop {names} first: a swap only ever stops replicas of stable."
    return "" if accept_outage else f"{fit.text} Start it with accept_outage if you accept that."


def _fit_warnings(fit: FitReport) -> list[Warn]:
    match fit.outcome:
        case FitOutcome.FITS_BESIDE:
            return []
        case FitOutcome.FITS_IF_STOPPED:
            text = f"{fit.text} Until then the candidate waits; after two hours the rollout ends without any traffic."
        case FitOutcome.UNKNOWN:
            text = f"{fit.text} It is placed once there is measured room, or ends without any traffic."
        case FitOutcome.SWAP_ONLY if _stops_all(fit):
            text = f"{fit.text} It then gets all traffic at once: gates have nothing to compare with, limits still act."
        case _:
            text = fit.text
    return [Warn(str(fit.outcome), text)]
