"""The lanes editor of a model: all lanes at once, live, with the consequences told beforehand."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Right, page_right
from console.pages.lane_consequences import lane_consequences
from console.pages.lane_forms import LaneFormsBase, digest_lanes, make_lane_forms
from console.pages.lane_matrix import lane_matrix
from console.pages.shell import REFUSED_STATUS, Refusal, actor_of, render_page
from pool.domain.errors import PoolError
from pool.queries.lanes import LaneUse, list_lane_uses
from pool.queries.models import ModelRow, find_model
from pool.services.errors import not_found
from pool.services.lane_edits import edit_lanes


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def edit(request: HttpRequest, name: str) -> HttpResponse:
    model = _get_model(name)
    uses = list_lane_uses(name)
    forms = make_lane_forms(request.POST or None, lanes=model.lanes, uses=uses)
    refusal = None
    if request.method == "POST":
        refusal = _stale(request, model) or _save(request, name, forms)
        if refusal is None:
            messages.success(
                request, _("The lanes of %(name)s are set: gateways follow within a second.") % {"name": name}
            )
            return redirect("model-control", name=name)
    context = {
        "name": name,
        "forms": forms,
        "refusal": refusal,
        "seen": digest_lanes(model.lanes),
        "uses": uses,
        "matrix": lane_matrix(model.lanes, uses),
        "consequences": _consequences(forms, model, uses),
    }
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(request, "lanes/page.html", context, nav="models", status=status)


@require_POST
@page_right(Right.OPERATE)
def preview(request: HttpRequest, name: str) -> HttpResponse:
    """A fragment: what the lanes as typed would do."""
    model = _get_model(name)
    uses = list_lane_uses(name)
    forms = make_lane_forms(request.POST, lanes=model.lanes, uses=uses)
    context = {"consequences": _consequences(forms, model, uses), "wrong": not forms.is_valid()}
    return render(request, "lanes/consequences.html", context)


def _get_model(name: str) -> ModelRow:
    model = find_model(name)
    if model is None:
        raise not_found("model", name)
    return model


def _stale(request: HttpRequest, model: ModelRow) -> Refusal | None:
    if request.POST.get("seen") == digest_lanes(model.lanes):
        return None
    return Refusal(
        title=_("Nothing was changed"),
        code="conflict",
        message=_("Somebody changed the lanes meanwhile. Compare with the lanes in force, then save again."),
    )


def _save(request: HttpRequest, name: str, forms: LaneFormsBase) -> Refusal | None:
    if not forms.is_valid():
        problems = tuple(str(problem) for problem in forms.non_form_errors())
        return Refusal(_("Nothing was changed"), "invalid", _("Correct the marked fields."), problems)
    try:
        edit_lanes(name, forms.wishes(), scales=_scales(forms), actor=actor_of(request))
    except PoolError as error:
        named = error.details.get("problems")
        listed = tuple(str(one) for one in named) if isinstance(named, list) else ()
        return Refusal(_("Nothing was changed"), error.code, error.message, listed)
    return None


def _scales(forms: LaneFormsBase) -> dict[tuple[int, str], int]:
    return {key: replicas for form in forms.kept() for key, replicas in form.scales().items()}


def _consequences(forms: LaneFormsBase, model: ModelRow, uses: tuple[LaneUse, ...]) -> list[dict[str, Any]]:
    """Of lanes that are typed soundly; until then there is nothing to foretell."""
    if not forms.is_bound or not forms.is_valid():
        return []
    return list(lane_consequences(model.lanes, forms.wishes(), uses=uses, scales=_scales(forms)))
