"""Gateways as they last described themselves, and how they hold back and spread a model's requests."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_read
from console.api.shapes import page_of, shape_of, to_json
from console.api.views import PoolView, present
from pool.queries.gateways import GatewayRow, list_gateways
from pool.queries.models import find_model
from pool.queries.traffic_control import TrafficControl, load_traffic_control


class GatewayList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(GatewayRow), parameters=(LIMIT, OFFSET), operation_id="list_gateways")
    def get(self, request: Request) -> Response:
        now = timezone.now()
        return self.answer_page(lambda limit, offset: list_gateways(now=now, limit=limit, offset=offset))


class ModelTrafficControl(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(TrafficControl),
        operation_id="get_traffic_control",
        description="Of now, summed over all gateways. null is unknown: nobody told, or Redis does not answer.",
    )
    def get(self, request: Request, *, model: str) -> Response:
        row = present(find_model(model), kind="model", name=model)
        return Response(to_json(load_traffic_control(model, lanes=row.lanes, now=timezone.now())))
