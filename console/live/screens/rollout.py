"""One rollout: where it stands, what its gates have seen, who serves which plan, what happened; and a model's list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.live.screens import tones
from console.live.screens.readiness import readiness_cells
from console.live.screens.rollout_state import (
    golden_row,
    late_cells,
    measured_cells,
    outcome_cells,
    step_row,
)
from console.live.screens.rows import Tree, hue_of
from console.rollout_words import gate_words
from console.templatetags.units import UNKNOWN, format_count, format_duration, to_iso
from pool.queries.golden import list_runs
from pool.queries.models import find_model
from pool.queries.readiness import load_readiness
from pool.queries.rollout_evidence import count_step_requests, load_measured
from pool.queries.rollout_rows import (
    RolloutEventRow,
    RolloutRow,
    RolloutView,
    find_rollout_view,
    list_rollout_rows,
)
from pool.queries.rollouts import GatewayProof, Proof
from pool.services.errors import not_found

BAR_UNITS = 100
MOST_EVENTS = 60
MOST_GOLDEN_RUNS = 10
_OUTCOME_TONES = {"worse": tones.BAD, "not_yet": tones.IDLE, "not_worse": tones.OK}


def build_rollout(rollout_id: str) -> Tree:
    now = timezone.now()
    view = find_rollout_view(rollout_id, now=now)
    if view is None:
        raise not_found("rollout", rollout_id)
    row = view.rollout
    requests = count_step_requests(row, now=now)
    golden = list_runs(row.model, rollout=row.id, limit=MOST_GOLDEN_RUNS)
    return {
        **rollout_cells(row),
        "promote_words": _promote_words(row),
        "back_words": _back_words(row),
        "shares": (shares := _shares(row)),
        "share_words": ", ".join(str(share["label"]) for share in shares),
        "measured": measured_cells(row, load_measured(row.model, now=now)),
        **outcome_cells(row, view.events),
        **late_cells(row, now=now),
        **readiness_cells(load_readiness(row.model, now)),
        "steps": [step_row(step, row, requests, now=now) for step in row.steps],
        "golden": [golden_row(run) for run in golden],
        "no_golden": not golden,
        "had_weight": row.weighted_at is not None,
        **_verdict_cells(view),
        **_proof_cells(row, view.proof),
        "events": [_event(event) for event in view.events[:MOST_EVENTS]],
    }


def build_rollouts(model: str) -> Tree:
    if find_model(model) is None:
        raise not_found("model", model)
    rows = list_rollout_rows(model)
    return {
        "rollouts": [rollout_cells(row) for row in rows],
        "no_rollouts": not rows,
        "is_idle": not any(row.is_active for row in rows),
    }


def rollout_cells(row: RolloutRow) -> Tree:
    return {
        "id": row.id,
        "href": reverse("rollout", args=[row.id]),
        "model": row.model,
        "candidate": row.candidate,
        "stable": row.stable,
        "title": _("release %(candidate)d beside release %(stable)d")
        % {"candidate": row.candidate, "stable": row.stable},
        "phase": _phase_word(row),
        "tone": tones.rollout_tone(row.phase),
        "percent": f"{row.candidate_percent} %",
        "owner": row.owner,
        "next": row.next_action or row.reason_text,
        "reason": row.reason_text,
        "by": row.created_by,
        "created_at": to_iso(row.created_at),
        "weighted_at": to_iso(row.weighted_at) if row.weighted_at else "",
        "entered_at": to_iso(row.entered_at),
        "ended_at": to_iso(row.ended_at) if row.ended_at else "",
        "deadline_at": to_iso(row.deadline_at) if row.deadline_at and row.is_active else "",
        "is_active": row.is_active,
        "can_pause": row.is_active and row.phase not in ("paused", "rolling_back"),
        "can_resume": row.phase == "paused",
        "can_promote": row.phase == "stepping" and not row.promote_asked,
        "can_roll_back": row.is_active and row.phase != "rolling_back",
        "can_fence": row.phase == "rolling_back",
    }


def _phase_word(row: RolloutRow) -> str:
    word = row.phase.replace("_", " ")
    if row.phase == "stepping":
        return _("step %(now)d of %(all)d") % {"now": row.step + 1, "all": len(row.steps)}
    return (
        _("paused in %(phase)s") % {"phase": row.resumes.replace("_", " ")} if row.phase == "paused" else word
    )


def _promote_words(row: RolloutRow) -> str:
    return _(
        "All traffic of %(model)s goes to release %(candidate)d now, without waiting for the gates. It is then held "
        "for %(hold)s with release %(stable)d warm and the guard on."
    ) % {
        "model": row.model,
        "candidate": row.candidate,
        "stable": row.stable,
        "hold": format_duration(row.hold_s),
    }


def _back_words(row: RolloutRow) -> str:
    if row.weighted_at is None:
        return _(
            "Release %(candidate)d has had no traffic of %(model)s. The rollout ends, no plan is written, and its "
            "replicas are scaled back to what they were."
        ) % {"candidate": row.candidate, "model": row.model}
    return _(
        "Plan %(plan)d of %(model)s comes back in force: release %(candidate)d gets 0 %%. Gateways apply it within a "
        "second; where release %(stable)d is not complete, traffic follows as its replicas get ready."
    ) % {"plan": row.base_plan, "model": row.model, "candidate": row.candidate, "stable": row.stable}


def _shares(row: RolloutRow) -> list[Tree]:
    """Of new requests, by the plan in force; the candidate's part first."""
    parts = sorted(
        ((int(number), percent) for number, percent in row.weights.items()),
        key=lambda part: (part[0] != row.candidate, part[0] != row.stable, part[0]),
    )
    return [
        {
            "id": str(number),
            "hue": hue_of(number),
            "width": f"{percent}%",
            "label": _("release %(number)d · %(percent)d %%") % {"number": number, "percent": percent},
            "sim": False,
        }
        for number, percent in parts
        if percent > 0
    ]


def _verdict_cells(view: RolloutView) -> Tree:
    verdict = view.verdict
    judgement = str(verdict.get("judgement", ""))
    gates = verdict.get("gates") or []
    return {
        "judgement": judgement.replace("_", " ") or _("not read yet"),
        "judgement_tone": _OUTCOME_TONES.get(judgement, tones.IDLE),
        "judgement_text": str(verdict.get("text", "")),
        "verdict_at": to_iso(view.verdict_at) if view.verdict_at else "",
        "has_verdict": bool(gates),
        "no_verdict": not gates,
        "gates": [_gate(gate) for gate in gates],
    }


def _gate(gate: Mapping[str, Any]) -> Tree:
    name, outcome = str(gate["gate"]), str(gate["outcome"])
    return {
        "id": name,
        "title": gate_words(name),
        "outcome": outcome.replace("_", " "),
        "tone": _OUTCOME_TONES.get(outcome, tones.IDLE),
        "dry": _("reports only") if gate.get("dry_run") else "",
        "text": str(gate.get("text", "")).removeprefix(f"{name}: "),
        "worse": _part(gate.get("worse_log"), gate.get("worse_bar")),
        "worse_words": _evidence(gate.get("worse_log"), gate.get("worse_bar")),
        "not_worse": _part(gate.get("not_worse_log"), gate.get("not_worse_bar")),
        "not_worse_words": _evidence(gate.get("not_worse_log"), gate.get("not_worse_bar")),
    }


def _part(log: Any, bar: Any) -> int:
    """How far to the bar, 0 to 100."""
    if not isinstance(log, int | float) or not isinstance(bar, int | float) or bar <= 0:
        return 0
    return round(BAR_UNITS * min(1.0, max(0.0, log / bar)))


def _evidence(log: Any, bar: Any) -> str:
    if not isinstance(log, int | float) or not isinstance(bar, int | float):
        return UNKNOWN
    return f"{max(0.0, log):.1f} / {bar:.1f}"


def _proof_cells(row: RolloutRow, proof: Proof | None) -> Tree:
    rows = proof.gateways if proof is not None else ()
    return {
        "has_proof": proof is not None,
        "stream_words": _stream_words(row.end_after_tokens) if proof is not None else "",
        "proof_words": _proof_words(proof),
        "proof_tone": tones.OK if proof is not None and proof.complete else tones.WARN,
        "last_sent_at": to_iso(proof.last_sent_at) if proof is not None and proof.last_sent_at else "",
        "running": format_count(proof.running)
        if proof is not None and proof.running is not None
        else UNKNOWN,
        "gateways": [_gateway(one) for one in rows],
    }


def _stream_words(end_after_tokens: int | None) -> str:
    if end_after_tokens is None:
        return _("Streams that run there finish.")
    return _("Streams that run there end after %(tokens)s more tokens.") % {
        "tokens": format_count(end_after_tokens)
    }


def _proof_words(proof: Proof | None) -> str:
    if proof is None:
        return ""
    if proof.complete:
        return _("complete: every gateway serves the plan, and nothing runs at the candidate")
    silent = [row.id for row in proof.gateways if row.silent]
    if silent:
        words = ngettext(
            "not proven: %(names)s says nothing and may still send",
            "not proven: %(names)s say nothing and may still send",
            len(silent),
        )
        return words % {"names": ", ".join(silent)}
    if proof.stable_percent < 100:
        return _("stable carries %(percent)d %% of its weight; the rest follows as it starts") % {
            "percent": proof.stable_percent
        }
    return _("under way")


def _gateway(row: GatewayProof) -> Tree:
    if row.silent:
        state, tone = _("silent"), tones.BAD
    elif row.applied_at is None:
        state, tone = _("an older plan"), tones.WARN
    else:
        state, tone = _("applied"), tones.OK
    return {
        "id": row.id,
        "state": state,
        "tone": tone,
        "applied_at": to_iso(row.applied_at) if row.applied_at else "",
        "last_sent_at": to_iso(row.last_sent_at) if row.last_sent_at else "",
        "running": format_count(row.in_flight) if row.in_flight is not None else UNKNOWN,
    }


def _event(event: RolloutEventRow) -> Tree:
    return {
        "id": f"{event.at.timestamp():.6f}-{event.kind}-{event.code}",
        "at": to_iso(event.at),
        "kind": event.kind,
        "tone": tones.BAD if event.kind in ("guard", "warning") else tones.IDLE,
        "text": event.text,
        "by": event.actor,
    }
