"""SLOs: what is promised, how much of the budget is left, and what new models propose."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Right, page_right
from console.pages.alerts import HOLDS, HoldForm
from console.pages.shell import REFUSED_STATUS, actor_of, refuse, render_page
from console.pages.slo_forms import NewSloForm, SloForm, form_values
from console.pages.slo_rows import LINE_SPAN, proposal_words, slo_words
from pool.domain.errors import PoolError
from pool.domain.slo import read_settings
from pool.queries.slos import SloRow, find_slo, list_points, list_slos
from pool.services import slos
from pool.services.errors import not_found
from pool.services.slos import SloWish


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    """The part that changes is fetched again every few seconds."""
    now, rows = timezone.now(), list_slos()
    active = [row for row in rows if row.phase == "active"]
    points = list_points([row.id for row in active], start=now - LINE_SPAN)
    context = {
        "slos": [slo_words(row, points.get(row.id, ()), now) for row in active],
        "proposals": [proposal_words(row) for row in rows if row.phase == "proposed"],
    }
    template = "slos/rows.html" if getattr(request, "htmx", False) else "slos/page.html"
    return render_page(request, template, context, nav="slos")


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.OPERATE)
def add(request: HttpRequest) -> HttpResponse:
    form = NewSloForm(request.POST or None, initial={"model": request.GET.get("model", "")})
    refusal = None
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        wish = SloWish(
            lane=given["lane"], tier=given["tier"], label=given["label"], template=given["template"],
            settings={"dry_run": given["dry_run"]},
        )  # fmt: skip
        try:
            made = slos.create_slo(given["model"], wish, actor=actor_of(request), now=timezone.now())
        except PoolError as error:
            refusal = refuse(form, error, fields={"not_found": "lane"})
        else:
            messages.success(request, _("The SLO is in force. These are its limits."))
            return redirect("slo", made.pk)
    status = REFUSED_STATUS if request.method == "POST" else 200
    return render_page(
        request, "slos/new.html", {"form": form, "refusal": refusal}, nav="slos", status=status
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page_right(Right.VIEW)
def show(request: HttpRequest, slo_id: int) -> HttpResponseBase:
    """Everyone sees it; changing needs the right, which `change` asks for."""
    if request.method == "POST":
        return change(request, slo_id)
    row = _find(slo_id)
    form = SloForm(initial=form_values(read_settings(row.settings)))
    return _render(request, row, form)


@require_POST
@page_right(Right.OPERATE)
def change(request: HttpRequest, slo_id: int) -> HttpResponse:
    row, form = _find(slo_id), SloForm(request.POST)
    if not form.is_valid():
        return _render(request, row, form, status=REFUSED_STATUS)
    try:
        slos.change_slo(slo_id, form.settings(), actor=actor_of(request), now=timezone.now())
        if row.phase != "active":
            slos.accept_proposal(slo_id, actor=actor_of(request), now=timezone.now())
    except PoolError as error:
        field = str(error.details.get("field", ""))
        if field in form.fields:
            form.add_error(field, error.message)
        return _render(request, row, form, refusal=refuse(form, error), status=REFUSED_STATUS)
    messages.success(request, _("Saved: it is judged by these limits from now on."))
    return redirect("slo-list")


@require_POST
@page_right(Right.OPERATE)
def accept(request: HttpRequest, slo_id: int) -> HttpResponse:
    slos.accept_proposal(slo_id, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("The proposal is in force."))
    return redirect("slo-list")


@require_POST
@page_right(Right.OPERATE)
def dismiss(request: HttpRequest, slo_id: int) -> HttpResponse:
    slos.dismiss_proposal(slo_id, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("Dismissed: it is not proposed again."))
    return redirect("slo-list")


@require_POST
@page_right(Right.OPERATE)
def end(request: HttpRequest, slo_id: int) -> HttpResponse:
    slos.end_slo(slo_id, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("The SLO is no more; its alerts are closed."))
    return redirect("slo-list")


@require_POST
@page_right(Right.OPERATE)
def hold(request: HttpRequest, slo_id: int) -> HttpResponse:
    form = HoldForm(request.POST)
    lasts = timedelta(seconds=form.cleaned_data["lasts_s"]) if form.is_valid() else None
    slos.hold_slo(slo_id, lasts=lasts, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("Automatic actions are held.") if lasts else _("Automatic actions go on."))
    return redirect("slo", slo_id)


def _render(
    request: HttpRequest, row: SloRow, form: SloForm, *, refusal: object = None, status: int = 200
) -> HttpResponse:
    now = timezone.now()
    points = list_points([row.id], start=now - LINE_SPAN)
    context = {
        "slo": slo_words(row, points.get(row.id, ()), now),
        "form": form,
        "refusal": refusal,
        "holds": HOLDS,
    }
    return render_page(request, "slos/slo.html", context, nav="slos", status=status)


def _find(slo_id: int) -> SloRow:
    row = find_slo(slo_id)
    if row is None:
        raise not_found("slo", slo_id)
    return row
