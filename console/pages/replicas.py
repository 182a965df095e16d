"""Replicas: the list, one replica, and what may be asked of it."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from console.access import Right, page_right
from console.live.screens.replica import PHASES, build_replica, build_replicas
from console.pages.shell import actor_of, render_page
from pool.domain.errors import PoolError
from pool.domain.names import NAME_PATTERN
from pool.queries.models import list_models
from pool.queries.nodes import list_nodes
from pool.services import wishes
from pool.services.errors import not_found


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    chosen = _read_filters(request)
    argument = urlencode(chosen)
    context = {
        "screen": build_replicas(argument),
        "chosen": chosen,
        "phases": PHASES,
        "models": [row.name for row in list_models()],
        "nodes": [row.name for row in list_nodes(now=timezone.now())],
    }
    path = f"/live/replicas/{argument}/" if argument else "/live/replicas/"
    return render_page(request, "replicas/list.html", context, nav="replicas", live_path=path)


def _read_filters(request: HttpRequest) -> dict[str, str]:
    """Names that could exist; anything else is no filter."""
    given = {name: request.GET.get(name, "") for name in ("model", "phase", "node")}
    return {name: value for name, value in given.items() if re.fullmatch(NAME_PATTERN, value)}


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, replica_id: str) -> HttpResponse:
    return render_page(
        request,
        "replicas/page.html",
        {"screen": build_replica(replica_id)},
        nav="replicas",
        live_path=f"/live/replica/{replica_id}/",
    )


@require_POST
@page_right(Right.OPERATE)
def drain(request: HttpRequest, replica_id: str) -> HttpResponse:
    try:
        accept = "accept_overload" in request.POST
        wishes.ask_drain(replica_id, actor=actor_of(request), accept_overload=accept)
    except PoolError as error:
        return _refused(request, replica_id, error)
    messages.success(request, _("The replica finishes what runs and then stops."))
    return redirect("replica", replica_id=replica_id)


@require_POST
@page_right(Right.OPERATE)
def restart(request: HttpRequest, replica_id: str) -> HttpResponse:
    try:
        accept = "accept_overload" in request.POST
        wishes.ask_restart(replica_id, actor=actor_of(request), accept_overload=accept)
    except PoolError as error:
        return _refused(request, replica_id, error)
    messages.success(request, _("The replica is drained and starts again as its next generation."))
    return redirect("replica", replica_id=replica_id)


def _refused(request: HttpRequest, replica_id: str, error: PoolError) -> HttpResponse:
    if error.code == "not_found":
        raise not_found("replica", replica_id)
    messages.error(request, error.message)
    return redirect("replica", replica_id=replica_id)
