"""Traffic of a model: a new plan with its consequences told beforehand, and the one click back."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right
from console.pages.numbers import read_whole
from console.pages.plan_consequences import plan_consequences
from console.pages.plan_form import PlanForm
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from pool.domain.errors import PoolError
from pool.queries.models import ModelView, find_model_view
from pool.queries.traffic_control import load_shadow_cost
from pool.services import plans
from pool.services.errors import Invalid, not_found
from pool.services.rollback import roll_back_model


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
            plan = plans.set_plan(name, form.wish(), actor=actor_of(request))
        except PoolError as error:
            refusal = refuse(form, error)
        else:
            messages.success(request, _("Plan %(number)d is in force.") % {"number": plan.number})
            return redirect("model", name=name)
    cost = load_shadow_cost(name, now=timezone.now())
    context = {
        "form": form,
        "refusal": refusal,
        "name": name,
        "plan": view.model.plan,
        "cost": cost,
        "consequences": plan_consequences(form, view, requests_per_min=cost.requests_per_min),
        "total": sum(form.typed_weights().values()),
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "models/plan.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def preview(request: HttpRequest, name: str) -> HttpResponse:
    """A fragment: what the weights as typed would do."""
    view = _get_view(name)
    cost = load_shadow_cost(name, now=timezone.now())
    found = plan_consequences(PlanForm(view, request.POST), view, requests_per_min=cost.requests_per_min)
    return render(request, "models/consequences.html", {"consequences": found})


@require_POST
@page_right(Right.OPERATE)
def roll_back(request: HttpRequest, name: str) -> HttpResponse:
    """`to_plan` puts an older plan back; without it: one click back."""
    wanted = request.POST.get("to_plan", "")
    try:
        to_plan = read_whole(wanted)
        if wanted and to_plan is None:
            raise Invalid(_("The plan to put back is named by its number. Choose one from the list."))
        plan, written = roll_back_model(name, to_plan=to_plan, actor=actor_of(request), now=timezone.now())
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
