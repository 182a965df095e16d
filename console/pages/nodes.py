"""Nodes: devices, runtimes, and cordon, drain and return."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from console.access import Right, page_right
from console.live.screens.nodes import build_nodes
from console.pages.shell import actor_of, render_page
from pool.services.errors import Conflict, not_found
from pool.services.wishes import set_node_wish

WISHES = {"cordon": "cordon", "drain": "drain", "return": "serve"}


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    return render_page(
        request, "nodes/page.html", {"screen": build_nodes()}, nav="nodes", live_path="/live/nodes/"
    )


@require_POST
@page_right(Right.OPERATE)
def wish(request: HttpRequest, name: str, wish: str) -> HttpResponse:
    if wish not in WISHES:
        raise not_found("action", wish)
    try:
        accept = "accept_overload" in request.POST
        set_node_wish(name, WISHES[wish], actor=actor_of(request), accept_overload=accept)
    except Conflict as error:
        messages.error(request, error.message)
        return redirect("node-list")
    words = {
        "cordon": _("%(name)s takes nothing new. What it runs goes on."),
        "drain": _("%(name)s becomes empty: its replicas finish what runs and are placed elsewhere."),
        "return": _("%(name)s takes replicas again."),
    }[wish]
    messages.success(request, words % {"name": name})
    return redirect("node-list")
