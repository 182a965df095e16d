"""Traffic control of a model: the live view of lanes, replicas and releases, and the decision matrix."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from console.access import Right, page_right
from console.alert_words import step_words
from console.live.screens.traffic_control import build_traffic_control
from console.pages.alerts import restriction_words
from console.pages.lane_matrix import lane_matrix
from console.pages.shell import actor_of, render_page
from pool.domain.ladder import AVAILABLE, Step
from pool.queries.alerts import list_restrictions
from pool.queries.lanes import list_lane_uses
from pool.queries.models import find_model
from pool.services.errors import Invalid, not_found
from pool.services.restrictions import RestrictionWish, restrict

_LASTS = (
    (5, gettext_lazy("5 minutes")),
    (30, gettext_lazy("half an hour")),
    (60, gettext_lazy("an hour")),
    (480, gettext_lazy("8 hours")),
)


class RestrictForm(forms.Form):
    kind = forms.ChoiceField()
    lane = forms.CharField(required=False, max_length=63)
    lasts_min = forms.TypedChoiceField(choices=_LASTS, coerce=int)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        field = self.fields["kind"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(step.value, step_words(step.value)) for step in Step if step in AVAILABLE]


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, name: str) -> HttpResponse:
    model = find_model(name)
    if model is None:
        raise not_found("model", name)
    uses, now = list_lane_uses(name), timezone.now()
    held = list_restrictions(model=name, is_active=True)
    context = {
        "name": name,
        "screen": build_traffic_control(name),
        "uses": uses,
        "matrix": lane_matrix(model.lanes, uses),
        "settings": model.gateway,
        "restrictions": [restriction_words(row, now) for row in held],
        "restrict_form": RestrictForm(),
        "lane_names": [lane.name for lane in model.lanes],
    }
    return render_page(
        request, "control/page.html", context, nav="models", live_path=f"/live/control/{name}/"
    )


@require_POST
@page_right(Right.OPERATE)
def hold_back(request: HttpRequest, name: str) -> HttpResponse:
    form = RestrictForm(request.POST)
    if not form.is_valid():
        raise Invalid("Choose what to hold back, where, and for how long.")
    given = form.cleaned_data
    wish = RestrictionWish(
        given["kind"], given["lane"], lasts=timedelta(minutes=given["lasts_min"]), reason=_("by hand")
    )
    restrict(name, wish, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("Held back: gateways follow within a second or two."))
    return redirect("model-control", name)
