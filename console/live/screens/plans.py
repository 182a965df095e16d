"""Plans with what each changed against the one before it."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from console.live.screens.rows import Tree, share_rows
from console.templatetags.units import to_iso
from pool.queries.plans import PlanRow, find_rollback_target


def plan_rows(plans: tuple[PlanRow, ...]) -> list[Tree]:
    """Newest first, as given."""
    older = [*plans[1:], None]
    return [_plan_row(plan, before) for plan, before in zip(plans, older, strict=True)]


def rollback_cells(plans: tuple[PlanRow, ...]) -> Tree:
    """What the one click back would do, in words."""
    current = next((plan for plan in plans if plan.in_force), None)
    if current is None:
        return {"can_roll_back": False, "rollback_words": ""}
    if current.rollback_of is not None:
        words = _("This plan is a rollback to plan %(target)d already.") % {"target": current.rollback_of}
        return {"can_roll_back": False, "rollback_words": words}
    target = find_rollback_target(plans)
    if target is None:
        return {"can_roll_back": False, "rollback_words": _("There is no older plan to go back to.")}
    words = _("Puts plan %(target)d back: %(weights)s.") % {
        "target": target.number,
        "weights": weight_words(target),
    }
    return {"can_roll_back": True, "rollback_words": words}


def _plan_row(plan: PlanRow, before: PlanRow | None) -> Tree:
    return {
        "id": str(plan.number),
        "name": _("plan %(number)d") % {"number": plan.number},
        "in_force": plan.in_force,
        "older": not plan.in_force,
        "kind": _("rollback to plan %(number)d") % {"number": plan.rollback_of} if plan.rollback_of else "",
        "comment": plan.comment,
        "author": plan.created_by,
        "at": to_iso(plan.created_at),
        "shares": share_rows(plan),
        "weights": weight_words(plan),
        "diff": diff_words(before, plan),
    }


def weight_words(plan: PlanRow) -> str:
    """“release 2: 5 %, release 1: 95 %, shadow: release 2 at 10 %”."""
    shares = sorted(((int(number), percent) for number, percent in plan.weights.items()), reverse=True)
    words = [
        _("release %(number)d: %(percent)d %%") % {"number": number, "percent": percent}
        for number, percent in shares
    ]
    return ", ".join([*words, *([shadow_words(plan)] if plan.shadow else [])])


def shadow_words(plan: PlanRow | None) -> str:
    """Empty: no request has a shadow."""
    shadow: Any = plan.shadow if plan else None
    if not shadow:
        return ""
    return _("shadow: release %(number)s at %(percent)s %%") % {
        "number": shadow.get("release"),
        "percent": shadow.get("percent", 100),
    }


def diff_words(before: PlanRow | None, after: PlanRow) -> str:
    """“release 2: 0 % → 10 %, release 1: 100 % → 90 %”."""
    if before is None:
        return ""
    numbers = sorted({int(number) for number in (*before.weights, *after.weights)}, reverse=True)
    parts = [
        _("release %(number)d: %(before)d %% → %(after)d %%")
        % {
            "number": number,
            "before": before.weights.get(str(number), 0),
            "after": after.weights.get(str(number), 0),
        }
        for number in numbers
        if before.weights.get(str(number), 0) != after.weights.get(str(number), 0)
    ]
    extras = [
        (before.lanes != after.lanes, _("lanes changed")),
        (before.pins != after.pins, _("pins changed")),
        (before.shadow != after.shadow, shadow_words(after) or _("no shadow any more")),
    ]
    return ", ".join([*parts, *(words for changed, words in extras if changed)]) or _("same weights")
