"""What one request said and got, masked, where its key keeps texts."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.pages.shell import actor_of, render_page
from pool.services.captures import read_text


@require_safe
@page_right(Right.CAPTURE)
def show(request: HttpRequest, request_id: str) -> HttpResponse:
    found = read_text(request_id, now=timezone.now(), actor=actor_of(request))
    return render_page(request, "requests/text.html", {"text": found}, nav="requests")
