"""Gateways as they last described themselves."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_read
from console.api.shapes import page_of
from console.api.views import PoolView
from pool.queries.gateways import GatewayRow, list_gateways


class GatewayList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(GatewayRow), parameters=(LIMIT, OFFSET), operation_id="list_gateways")
    def get(self, request: Request) -> Response:
        now = timezone.now()
        return self.answer_page(lambda limit, offset: list_gateways(now=now, limit=limit, offset=offset))
