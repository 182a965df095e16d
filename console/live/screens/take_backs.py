"""The one click back in words, on every screen that has a model: what it is about, and what it does exactly."""

from __future__ import annotations

from django.urls import reverse
from django.utils.translation import gettext as _

from console.live.screens.rows import Tree
from console.live.screens.tones import rollout_tone
from console.rollout_words import weight_words
from pool.queries.take_backs import ActiveRollout, TakeBack


def take_back_cells(model: str, back: TakeBack) -> Tree:
    """`can_take_back`: a button stands there; `back_action`: where its form goes."""
    rollout = back.rollout
    return {
        "can_take_back": _can_take_back(back),
        "back_words": _back_words(model, back),
        "back_action": reverse("rollout-rollback", args=[rollout.id])
        if rollout
        else reverse("rollback", args=[model]),
        "has_rollout": rollout is not None,
        "no_rollout": rollout is None,
        "rollout_words": rollout_words(rollout) if rollout else "",
        "rollout_tone": rollout_tone(rollout.phase) if rollout else "",
        "rollout_href": reverse("rollout", args=[rollout.id]) if rollout else "",
    }


def rollout_words(rollout: ActiveRollout) -> str:
    """“release 2: step 1 of 3”."""
    phase = rollout.phase.replace("_", " ")
    if rollout.phase == "stepping":
        phase = _("step %(now)d of %(all)d") % {"now": rollout.step + 1, "all": rollout.steps}
    elif rollout.phase == "paused":
        phase = _("paused in %(phase)s") % {"phase": rollout.resumes.replace("_", " ")}
    return _("release %(candidate)d: %(phase)s") % {"candidate": rollout.candidate, "phase": phase}


def _can_take_back(back: TakeBack) -> bool:
    return back.rollout.phase != "rolling_back" if back.rollout else back.target is not None


def _back_words(model: str, back: TakeBack) -> str:
    rollout = back.rollout
    if rollout is not None and not rollout.had_weight:
        return _(
            "The rollout of release %(candidate)d of %(model)s ends. It has had no traffic: no plan is written, and "
            "its replicas are scaled back to what they were."
        ) % {"candidate": rollout.candidate, "model": model}
    if rollout is not None:
        return _(
            "Plan %(plan)d of %(model)s comes back in force: release %(candidate)d gets 0 %% and release %(stable)d "
            "its traffic again, within a second. Streams that run there finish."
        ) % {
            "plan": rollout.base_plan,
            "model": model,
            "candidate": rollout.candidate,
            "stable": rollout.stable,
        }
    if back.target is not None:
        return _(
            "Plan %(plan)d of %(model)s is put back within a second: %(weights)s. Streams that run finish where they "
            "are, and no replica is stopped."
        ) % {"plan": back.target.number, "model": model, "weights": weight_words(back.target.weights)}
    return ""
