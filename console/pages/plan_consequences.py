"""What a traffic plan as typed would do: a sentence for each release whose share changes, and for the shadow."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from console.pages.plan_form import WHOLE, PlanForm
from console.templatetags.units import format_count
from pool.queries.models import ModelView, ReleaseRow


def plan_consequences(
    form: PlanForm, view: ModelView, *, requests_per_min: float | None
) -> list[dict[str, str]]:
    """`requests_per_min`: of the model now; None: unknown, and then nothing is foretold from it."""
    weights = form.typed_weights()
    found = [_of_weight(release, weights[release.number]) for release in view.releases]
    found += _of_shadow(form, weights, requests_per_min)
    return [consequence for consequence in found if consequence is not None]


def _of_weight(release: ReleaseRow, percent: int) -> dict[str, str] | None:
    words = {"number": release.number, "before": release.weight_percent, "after": percent}
    if percent and not _count_ready(release):
        text = _(
            "Release %(number)d has no ready replica: its %(after)d %% spill to other releases or get a 503."
        )
        return {"state": "bad", "text": text % words}
    if release.weight_percent and not percent:
        text = _(
            "Release %(number)d gets no new request any more (%(before)d %% → 0 %%). Its replicas stay warm."
        )
        return {"state": "warn", "text": text % words}
    if percent != release.weight_percent:
        text = _("Release %(number)d: %(before)d %% → %(after)d %%.")
        return {"state": "busy", "text": text % words}
    return None


def _of_shadow(
    form: PlanForm, weights: dict[int, int], requests_per_min: float | None
) -> list[dict[str, str] | None]:
    before, after = form.shadow_in_force(), form.typed_shadow()
    if after is None:
        text = _("No request has a shadow any more.")
        return [{"state": "busy", "text": text}] if before else []
    found = [_why_nothing(form, after, weights)]
    if after != before:
        found.append({"state": "busy", "text": _shadow_words(after, weights, requests_per_min)})
    return found


def _why_nothing(form: PlanForm, shadow: dict[str, Any], weights: dict[int, int]) -> dict[str, str] | None:
    """A shadow that would see nothing."""
    number = shadow["release"]
    release = next((one for one in form.releases if one.number == number), None)
    if release is None or not _count_ready(release):
        text = _("Release %(number)d has no ready replica: it sees nothing until it has one.")
    elif weights.get(number) == WHOLE:
        text = _("Release %(number)d serves all requests itself: there is nothing for it to shadow.")
    else:
        return None
    return {"state": "warn", "text": text % {"number": number}}


def _shadow_words(shadow: dict[str, Any], weights: dict[int, int], requests_per_min: float | None) -> str:
    words = _(
        "Release %(number)d also gets a copy of %(percent)s %% of the requests that others serve, into idle "
        "slots only. Its answers are dropped; callers notice nothing."
    ) % {"number": shadow["release"], "percent": f"{shadow['percent']:g}"}
    if not requests_per_min:
        return words
    others = (WHOLE - weights.get(shadow["release"], 0)) / WHOLE
    pace = requests_per_min * others * shadow["percent"] / WHOLE
    return f"{words} " + _("As things are now: up to %(count)s requests a minute.") % {
        "count": format_count(round(pace))
    }


def _count_ready(release: ReleaseRow) -> int:
    return sum(count.ready for count in release.counts)
