"""The first page: the pool at a glance."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.live.screens.activity import build_activity
from console.live.screens.overview import build_overview
from console.pages.shell import render_page


@require_safe
@page_right(Right.VIEW)
def show_overview(request: HttpRequest) -> HttpResponse:
    return render_page(
        request,
        "overview/page.html",
        {"screen": build_overview()},
        nav="overview",
        live_path="/live/overview/",
    )


@require_safe
@page_right(Right.VIEW)
def show_activity(request: HttpRequest) -> HttpResponse:
    """A part of the first page, fetched after it and every few seconds: it reads many cells."""
    return render(request, "overview/activity.html", {"screen": build_activity(now=timezone.now())})
