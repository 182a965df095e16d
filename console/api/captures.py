"""What one request said and got, masked, where its key keeps texts."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.shapes import shape_of
from console.api.views import PoolView, answer_one
from pool.queries.captures import CaptureView
from pool.services.captures import read_text

TEXT = shape_of(CaptureView)


class RequestText(PoolView):
    rights = {"GET": Right.CAPTURE}

    @describe_read(
        TEXT,
        operation_id="get_request_text",
        description="Masked, and only of keys that keep texts. Each reading stands in the audit.",
    )
    def get(self, request: Request, *, request_id: str) -> Response:
        found = read_text(request_id, now=timezone.now(), actor=self.actor())
        return answer_one(found, kind="text of request", name=request_id)
