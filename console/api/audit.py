"""The audit trail: who changed what, when and from where."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_read
from console.api.shapes import page_of
from console.api.views import PoolView
from pool.queries.audit import AuditRow, list_audit


class AuditQuery(serializers.Serializer[Any]):
    subject = serializers.CharField(
        max_length=255, default="", allow_blank=True, help_text="`kind/name`, and all below it."
    )
    actor = serializers.CharField(max_length=150, default="", allow_blank=True)
    action = serializers.CharField(max_length=63, default="", allow_blank=True)


class AuditList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(AuditRow), parameters=(LIMIT, OFFSET, AuditQuery), operation_id="list_audit")
    def get(self, request: Request) -> Response:
        filters = self.read_query(AuditQuery)
        return self.answer_page(lambda limit, offset: list_audit(limit=limit, offset=offset, **filters))
