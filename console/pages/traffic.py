"""Traffic of a model: a new plan with its consequences told beforehand, and the one click back."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right
from console.live.screens.rows import hue_of
from console.pages.numbers import read_whole
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.queries.models import ModelView, ReleaseRow, find_model_view
from pool.services import plans
from pool.services.errors import Invalid, not_found
from pool.services.plans import PlanWish

WHOLE = 100


class PlanForm(forms.Form):
    """A weight in percent for every release; lanes, pins and shadow of the plan in force are kept."""

    comment = forms.CharField(
        label=gettext_lazy("Comment"),
        required=False,
        max_length=2000,
        widget=forms.TextInput(attrs={"placeholder": gettext_lazy("Why; the next one on duty reads it")}),
    )

    def __init__(self, view: ModelView, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.releases = view.releases
        for release in view.releases:
            self.fields[f"weight_{release.number}"] = forms.IntegerField(
                label=_("Weight of release %(number)d in percent") % {"number": release.number},
                min_value=0,
                max_value=WHOLE,
                required=False,
                initial=release.weight_percent,
                widget=forms.NumberInput(attrs={"data-weight": release.number, "inputmode": "numeric"}),
            )

    def rows(self) -> list[dict[str, object]]:
        return [
            {
                "release": release,
                "field": self[f"weight_{release.number}"],
                "hue": hue_of(release.number),
                "ready": sum(count.ready for count in release.counts),
                "wanted": sum(count.wanted for count in release.counts),
            }
            for release in self.releases
        ]

    def weights(self) -> dict[int, int]:
        """Only what was given and is valid; an empty field is 0."""
        given = self.cleaned_data
        return {release.number: given.get(f"weight_{release.number}") or 0 for release in self.releases}

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        total = sum(given.get(f"weight_{release.number}") or 0 for release in self.releases)
        if total != WHOLE and not self.errors:
            raise forms.ValidationError(
                _("The weights sum to %(total)d %%, not to 100 %%."), params={"total": total}, code="sum"
            )
        return given


def _get_view(name: str) -> ModelView:
    view = find_model_view(name)
    if view is None:
        raise not_found("model", name)
    return view


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def set_weights(request: HttpRequest, name: str) -> HttpResponse:
    view = _get_view(name)
    form = PlanForm(view, request.POST or None)
    refusal = None
    if request.method == "POST" and form.is_valid():
        try:
            plan = plans.set_plan(name, _wish_of(form, view), actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error)
        else:
            messages.success(request, _("Plan %(number)d is in force.") % {"number": plan.number})
            return redirect("model", name=name)
    context = {
        "form": form,
        "refusal": refusal,
        "name": name,
        "plan": view.model.plan,
        "consequences": _consequences_of(form, view),
        "total": sum(_typed_weights(form, view).values()),
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "models/plan.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def preview(request: HttpRequest, name: str) -> HttpResponse:
    """A fragment: what the weights as typed would do."""
    view = _get_view(name)
    form = PlanForm(view, request.POST)
    return render(request, "models/consequences.html", {"consequences": _consequences_of(form, view)})


@require_POST
@page_right(Right.OPERATE)
def roll_back(request: HttpRequest, name: str) -> HttpResponse:
    """`to_plan` puts an older plan back; without it: one click back."""
    wanted = request.POST.get("to_plan", "")
    try:
        to_plan = read_whole(wanted)
        if wanted and to_plan is None:
            raise Invalid(_("The plan to put back is named by its number. Choose one from the list."))
        plan, written = plans.roll_back(name, to_plan=to_plan, actor=actor_of(request))
    except PoolError as error:
        messages.error(request, error.message)
    else:
        words = (
            _(
                "Plan %(number)d is in force: plan %(target)s is back. Watch below which gateways have applied it."
            )
            if written
            else _("Plan %(number)d is a rollback already and stays in force. Nothing was changed.")
        )
        messages.success(request, words % {"number": plan.number, "target": plan.rollback_of})
    return redirect("model", name=name)


def _wish_of(form: PlanForm, view: ModelView) -> PlanWish:
    current = view.model.plan
    weights = {number: percent for number, percent in form.weights().items() if percent}
    if current is None:
        return PlanWish(weights=weights, comment=form.cleaned_data["comment"])
    return PlanWish(
        weights=weights,
        lanes={lane: {int(n): p for n, p in shares.items()} for lane, shares in current.lanes.items()},
        pins=dict(current.pins),
        shadow=current.shadow,
        comment=form.cleaned_data["comment"],
    )


def _typed_weights(form: PlanForm, view: ModelView) -> dict[int, int]:
    """What stands in the fields now, valid or not; what is no number counts 0."""
    typed = {release.number: str(form[f"weight_{release.number}"].value() or 0) for release in view.releases}
    return {number: read_whole(text) or 0 for number, text in typed.items()}


def _consequences_of(form: PlanForm, view: ModelView) -> list[dict[str, str]]:
    """One sentence per release whose share changes or cannot be carried."""
    weights = _typed_weights(form, view)
    found = [_consequence(release, weights[release.number]) for release in view.releases]
    return [consequence for consequence in found if consequence is not None]


def _consequence(release: ReleaseRow, percent: int) -> dict[str, str] | None:
    ready = sum(count.ready for count in release.counts)
    words = {"number": release.number, "before": release.weight_percent, "after": percent}
    if percent and not ready:
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
