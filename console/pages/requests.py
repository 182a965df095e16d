"""Requests: one by its id, and what failed lately."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from console.access import Right, can, page_right
from console.live.screens.request import request_tree
from console.pages.shell import render_page
from pool.queries.captures import has_capture
from pool.queries.request_detail import find_by_tag, find_request, list_failures
from pool.services.errors import not_found

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@require_safe
@page_right(Right.VIEW)
def search(request: HttpRequest) -> HttpResponse:
    """`?id=`: the id that an answer bore in `x-request-id`, or the one that the caller had sent."""
    now, asked = timezone.now(), request.GET.get("id", "").strip()
    problem = ""
    if asked:
        found = _find_id(asked)
        if found is not None:
            return redirect("request", request_id=found)
        problem = _("No request bears this id. Records come within seconds and are kept for 15 days.")
    context = {"asked": asked[:128], "problem": problem, "failures": list_failures(now=now)}
    status = 404 if problem else 200
    return render_page(request, "requests/search.html", context, nav="requests", status=status)


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, request_id: str) -> HttpResponse:
    found = find_request(request_id)
    if found is None:
        raise not_found("request", request_id)
    context: dict[str, Any] = {"screen": request_tree(found)}
    if can(request.user, Right.CAPTURE) and has_capture(found.request_id, now=timezone.now()):
        context["text_id"] = found.request_id
    return render_page(request, "requests/page.html", context, nav="requests")


def _find_id(asked: str) -> str | None:
    if not _ID.fullmatch(asked):
        return None
    found = find_request(asked)
    return found.request_id if found is not None else find_by_tag(asked, now=timezone.now())
