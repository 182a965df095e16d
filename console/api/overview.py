"""The whole pool in one answer, for scripts that watch it."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.shapes import shape_of, to_json
from console.api.views import PoolView
from pool.queries.overview import Overview, load_overview


class Status(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(shape_of(Overview), operation_id="get_status")
    def get(self, request: Request) -> Response:
        return Response(to_json(load_overview(now=timezone.now())))
