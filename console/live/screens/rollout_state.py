"""Parts of a rollout's page that say how it stands: its end in words, what is late, measured traffic, golden runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.live.screens import tones
from console.live.screens.rows import Tree, hue_of
from console.rollout_words import span_words
from console.templatetags.units import format_count, format_instant, format_share, to_iso
from pool.queries.golden import GoldenRunRow
from pool.queries.rollout_evidence import Measured
from pool.queries.rollout_rows import RolloutEventRow, RolloutRow, StepRow

LATE_AFTER = timedelta(seconds=30)
"""Beyond a deadline at which control would have acted by itself."""
_BY_HAND = ("operator", "operator")
_STEP_TONES = {"done": tones.OK, "current": tones.BUSY, "coming": tones.IDLE}
_JUDGEMENT_TONES = {"worse": tones.BAD, "not_yet": tones.IDLE, "not_worse": tones.OK}


def outcome_cells(row: RolloutRow, events: Sequence[RolloutEventRow]) -> Tree:
    """How it ended and why; nothing while it runs. `events`: newest first."""
    tone, title, words = _outcome(row)
    cause = _find_cause(events) if row.phase in ("rolled_back", "failed") else ""
    return {
        "has_outcome": bool(title),
        "outcome_tone": tone,
        "outcome_title": title,
        "outcome_words": _join(cause, words),
    }


def _join(cause: str, words: str) -> str:
    if cause in words:
        return words
    return cause if words in cause else f"{cause} {words}"


def _find_cause(events: Sequence[RolloutEventRow]) -> str:
    """What began the rollback: the guard's figures, or who asked for it. Empty: neither did."""
    causes = [event for event in events if event.kind == "guard" or (event.kind, event.code) == _BY_HAND]
    return causes[-1].text if causes else ""


def _outcome(row: RolloutRow) -> tuple[str, str, str]:
    names = {"candidate": row.candidate, "stable": row.stable, "model": row.model, "plan": row.base_plan}
    if row.phase == "promoted":
        title = _("Release %(candidate)d is promoted") % names
        if row.plan_in_force != row.plan:
            words = _(
                "Plan %(now)s has been put in force since: release %(candidate)d has %(percent)d %% of %(model)s now."
            )
            now = {"now": row.plan_in_force, "percent": row.candidate_percent}
            return tones.WARN, _("Release %(candidate)d was promoted") % names, words % (names | now)
        words = _(
            "It has all traffic of %(model)s. Release %(stable)d still has its replicas until you scale it down: as "
            "long as they are warm, putting plan %(plan)d back takes effect at once."
        )
        return tones.OK, title, words % names
    if row.phase == "rolled_back" and row.weighted_at is None:
        title = _("Taken back before its first weight")
        words = _("No plan was written, and no request of a user reached release %(candidate)d.") % names
        return tones.WARN, title, f"{words} {row.reason_text}"
    if row.phase == "rolled_back":
        title = _("Taken back: release %(stable)d has the traffic of %(model)s again") % names
        return tones.WARN, title, row.reason_text
    if row.phase == "failed":
        title = (
            _("Failed before release %(candidate)d had any traffic")
            if row.weighted_at is None
            else _("The rollback could not be proven complete")
        )
        return tones.BAD, title % names, row.reason_text
    return tones.IDLE, "", ""


def late_cells(row: RolloutRow, *, now: datetime) -> Tree:
    """A phase that is beyond its time says so, and who has to do what."""
    late = row.is_active and row.deadline_at is not None and now > row.deadline_at + LATE_AFTER
    if not late or row.deadline_at is None:
        return {"is_late": False, "late_words": ""}
    when = {"at": format_instant(row.deadline_at)}
    words = {
        "stepping": _(
            "This step was to end by %(at)s and is neither passed nor refuted. It waits for a person: promote it, or "
            "take it back."
        ),
        "holding": _(
            "It was to be promoted at %(at)s. Control does not move it on: see whether control runs."
        ),
        "rolling_back": _(
            "The rollback was to be complete by %(at)s. See below which gateway or release it waits for."
        ),
    }.get(row.phase, _("This phase was to end by %(at)s. It waits for what is named above."))
    return {"is_late": True, "late_words": words % when}


def measured_cells(row: RolloutRow, measured: Measured) -> Tree:
    """Shares of requests that ended in the last minute, beside the ones that the plan asks for."""
    shares = [
        {
            "id": str(number),
            "hue": hue_of(number),
            "width": f"{100 * count / measured.total:.2f}%",
            "label": _("release %(number)d · %(share)s · %(count)s")
            % {"number": number, "share": format_share(count / measured.total), "count": format_count(count)},
            "sim": False,
        }
        for number, count in sorted(measured.by_release.items(), reverse=True)
        if count
    ]
    words = ngettext(
        "measured: %(count)s request ended in the last minute",
        "measured: %(count)s requests ended in the last minute",
        measured.total,
    ) % {"count": format_count(measured.total)}
    none = _("measured: no request ended in the last minute, so the shares are not known")
    return {
        "shares": shares,
        "share_words": ", ".join(str(share["label"]) for share in shares),
        "words": words if measured.total else none,
    }


def step_row(step: StepRow, row: RolloutRow, requests: Mapping[str, int], *, now: datetime) -> Tree:
    is_current = step.state == "current" and row.phase == "stepping"
    is_left = step.state == "current" and (row.phase == "rolling_back" or not row.is_active)
    return {
        "id": str(step.number),
        "weight": f"{step.weight} %",
        "state": _("taken back here") if is_left else _(step.state),
        "tone": tones.WARN if is_left else _STEP_TONES[step.state],
        "lanes": ", ".join(step.lanes),
        "soak": _soak_words(step, row, now) if is_current else span_words(step.soak_s),
        "requests": _request_words(step, requests) if is_current else format_count(step.min_requests),
    }


def _soak_words(step: StepRow, row: RolloutRow, now: datetime) -> str:
    passed = min(step.soak_s, max(0, int((now - row.entered_at).total_seconds())))
    return _("%(passed)d of %(all)s") % {"passed": passed, "all": f"{step.soak_s} s"}


def _request_words(step: StepRow, requests: Mapping[str, int]) -> str:
    """“short 120, mid 3 of 200”: what the candidate has answered since the step began."""
    counted = {lane: count for lane, count in requests.items() if not step.lanes or lane in step.lanes}
    if not counted:
        return _("none of %(all)s") % {"all": format_count(step.min_requests)}
    words = ", ".join(f"{lane} {format_count(count)}" for lane, count in sorted(counted.items()))
    return _("%(counted)s of %(all)s") % {"counted": words, "all": format_count(step.min_requests)}


def golden_row(run: GoldenRunRow) -> Tree:
    words = {"worse": _("differs"), "not_worse": _("matches"), "not_yet": _("not known")}
    said = words.get(run.judgement) or (_("failed") if run.phase == "failed" else _("under way"))
    return {
        "id": str(run.id),
        "stage": f"{run.stage} · {run.lane}" if run.lane else run.stage,
        "replica": run.replica,
        "said": said,
        "tone": _JUDGEMENT_TONES.get(run.judgement, tones.BAD if run.phase == "failed" else tones.BUSY),
        "text": run.text,
        "at": to_iso(run.done_at or run.asked_at),
    }
