"""One request's times, tokens, attempts, release and replica."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.shapes import shape_of
from console.api.views import PoolView, answer_one
from pool.queries.request_detail import RequestView, find_request

REQUEST = shape_of(RequestView)


class RequestDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(REQUEST, operation_id="get_request")
    def get(self, request: Request, *, request_id: str) -> Response:
        return answer_one(find_request(request_id), kind="request", name=request_id)
