"""What a start of a rollout would do, told before it is done: from the same check that the start itself makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.pages.rollout_form import RolloutForm
from console.pages.rollout_room import ChangeRow, Room, change_rows, room_of
from console.rollout_words import (
    gate_words,
    least_time_words,
    replica_words,
    span_words,
    step_words,
    weight_words,
)
from pool.domain.errors import PoolError
from pool.domain.rollout import Step
from pool.services.errors import NotFound
from pool.services.rollout_room import Reports
from pool.services.rollouts import RolloutWish, Start, preview_reports, preview_rollout


@dataclass(frozen=True)
class Preview:
    """`problems`: why a start would be refused; then nothing else is told."""

    problems: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    room: Room | None = None
    changes: tuple[ChangeRow, ...] = ()
    memory: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    end: str = ""
    back: str = ""
    least: str = ""


def preview_form(model: str, form: RolloutForm) -> Preview:
    if not form.is_valid():
        problems = [
            f"{_label_of(form, name)}: {problem}" for name, found in form.errors.items() for problem in found
        ]
        return Preview(problems=tuple(problems))
    wish = form.wish()
    try:
        start = preview_rollout(model, wish)
    except NotFound:
        raise
    except PoolError as error:
        listed = error.details.get("problems")
        problems = [str(one) for one in listed] if isinstance(listed, list | tuple) else [error.message]
        return Preview(problems=tuple(problems))
    return _describe(start, wish, preview_reports(start, wish, now=timezone.now()))


def read_initial(form: RolloutForm) -> dict[str, Any]:
    """What a browser would send of the form as it is first shown."""
    data = {}
    for bound in form:
        value = bound.field.prepare_value(bound.initial)
        if value is not None and value is not False:
            data[bound.html_name] = value
    choices: Any = getattr(form.fields["candidate"], "choices", ())
    data.setdefault("candidate", next((value for value, _words in choices), ""))
    return data


def _describe(start: Start, wish: RolloutWish, reports: Reports) -> Preview:
    names = {
        "model": start.model.name,
        "candidate": start.candidate.number,
        "stable": start.stable.number,
        "plan": start.base.number,
    }
    return Preview(
        facts=(_scale_words(start, names), *_lane_words(wish, names), *_dry_words(wish)),
        steps=tuple(step_words(step) for step in _told_steps(start, wish, reports)),
        room=room_of(reports, is_accepted=wish.accept_outage),
        changes=change_rows(reports.diff),
        memory=tuple(row.text for row in reports.diff.memory if row.text),
        warnings=tuple(warning.text for warning in reports.diff.warnings),
        end=_end_words(wish, names),
        back=_(
            "Until then one click, a gate that finds it worse, or a broken limit puts plan %(plan)d back: %(weights)s."
        )
        % {**names, "weights": weight_words(start.base.weights)},
        least=least_time_words(reports.steps, wish.hold_s),
    )


def _told_steps(start: Start, wish: RolloutWish, reports: Reports) -> tuple[Step, ...]:
    """Lane by lane has each step once for every lane: one list of them is told, unless a swap changed it."""
    return wish.steps if reports.steps == start.steps else reports.steps


def _scale_words(start: Start, names: dict[str, Any]) -> str:
    before = sum(count for _lane, count in start.scales_before)
    gets = (
        _("Release %(candidate)d has %(before)d replicas wished now and gets %(replicas)s.")
        if before
        else _("Release %(candidate)d gets %(replicas)s.")
    )
    total = sum(count for _lane, count in start.scales)
    then = ngettext(
        "It loads and warms up; no request of a user reaches it before it is ready.",
        "They load and warm up; no request of a user reaches them before all are ready.",
        total,
    )
    return f"{gets % {**names, 'replicas': replica_words(start.scales), 'before': before}} {then}"


def _end_words(wish: RolloutWish, names: dict[str, Any]) -> str:
    if not wish.hold_s:
        return (
            _(
                "All traffic of %(model)s goes to release %(candidate)d, which is promoted at once; "
                "the replicas of release %(stable)d are then yours to stop."
            )
            % names
        )
    return _(
        "All traffic of %(model)s goes to release %(candidate)d for %(hold)s, with release %(stable)d still warm. "
        "Then it is promoted, and the replicas of release %(stable)d are yours to stop."
    ) % {**names, "hold": span_words(wish.hold_s)}


def _lane_words(wish: RolloutWish, names: dict[str, Any]) -> tuple[str, ...]:
    if not wish.lanes:
        return ()
    return (
        _("One lane after the other, each with all steps: %(lanes)s.") % {"lanes": " → ".join(wish.lanes)},
    )


def _dry_words(wish: RolloutWish) -> tuple[str, ...]:
    silent = [gate_words(gate) for gate, setting in wish.gates.items() if setting.get("dry_run")]
    if not silent:
        return ()
    return (_("Only reported, never acted on: %(gates)s.") % {"gates": ", ".join(silent)},)


def _label_of(form: RolloutForm, name: str) -> str:
    gate, dash, _setting = name.partition("-")
    return gate_words(gate) if dash else str(form.fields[name].label) if name in form.fields else ""
