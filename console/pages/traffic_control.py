"""Traffic control of a model: the live view of lanes, replicas and releases, and the decision matrix."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.live.screens.traffic_control import build_traffic_control
from console.pages.lane_matrix import lane_matrix
from console.pages.shell import render_page
from pool.queries.lanes import list_lane_uses
from pool.queries.models import find_model
from pool.services.errors import not_found


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, name: str) -> HttpResponse:
    model = find_model(name)
    if model is None:
        raise not_found("model", name)
    uses = list_lane_uses(name)
    context = {
        "name": name,
        "screen": build_traffic_control(name),
        "uses": uses,
        "matrix": lane_matrix(model.lanes, uses),
        "settings": model.gateway,
    }
    return render_page(
        request, "control/page.html", context, nav="models", live_path=f"/live/control/{name}/"
    )
