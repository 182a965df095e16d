"""SLOs: promises, what was measured of them, and proposals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, done, once
from pool.domain.slo import TEMPLATES
from pool.queries.slos import SloRow, find_slo, list_slos
from pool.services import slos
from pool.services.idempotency import Answer
from pool.services.slos import SloWish

SLO = shape_of(SloRow)
MODEL = OpenApiParameter("model", str, description="Only of this model.")
_LARGEST = 2**31 - 1


class SloInput(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=63)
    lane = serializers.CharField(max_length=63, default="", allow_blank=True, help_text="Empty: all lanes.")
    tier = serializers.CharField(max_length=16, default="", allow_blank=True, help_text="Empty: all tiers.")
    label = serializers.CharField(  # type: ignore[assignment]  # a field of that name
        max_length=63, default="", allow_blank=True, help_text="Business label of the key. Empty: all."
    )
    template = serializers.ChoiceField(choices=list(TEMPLATES), default="interactive")
    settings = serializers.DictField(
        required=False,
        help_text="Laid over the template's: `ttft_p99_s`, `orange_s`, `errors_ratio`, `dry_run`, …",
    )


class SloChange(serializers.Serializer[Any]):
    settings = serializers.DictField(help_text="Only what is named changes; null: nothing is promised there.")


class HoldInput(serializers.Serializer[Any]):
    lasts_s = serializers.FloatField(
        min_value=1,
        max_value=604_800,
        allow_null=True,
        help_text="No automatic action for so long; null ends it.",
    )


class SloFilter(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=63, required=False, allow_blank=True, default="")


class SloList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(
        page_of(SloRow),
        parameters=(MODEL, LIMIT, OFFSET),
        operation_id="list_slos",
        description="Proposals among them (`phase`). `report`: what the newest pass found, null where nobody promised.",
    )
    def get(self, request: Request) -> Response:
        model = self.read_query(SloFilter)["model"]
        return self.answer_page(lambda limit, offset: list_slos(model=model, limit=limit, offset=offset))

    @describe_post(SLO, request=SloInput, status=201, operation_id="create_slo", codes=("invalid_slo",))
    @once()
    def post(self, request: Request) -> Answer:
        body = self.read_body(SloInput)
        model = body.pop("model")
        row = slos.create_slo(model, SloWish(**body), actor=self.actor(), now=timezone.now())
        return created(find_slo(row.pk))


class SloDetail(PoolView):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE, "DELETE": Right.OPERATE}

    @describe_read(SLO, operation_id="get_slo")
    def get(self, request: Request, *, number: int) -> Response:
        return answer_one(find_slo(number), kind="slo", name=number)

    @describe_write(SLO, request=SloChange, operation_id="change_slo")
    def patch(self, request: Request, *, number: int) -> Response:
        body = self.read_body(SloChange)
        slos.change_slo(number, body["settings"], actor=self.actor(), now=timezone.now())
        return answer_one(find_slo(number), kind="slo", name=number)

    @describe_write(SLO, operation_id="end_slo", description="Its alerts are closed; answers as it was.")
    def delete(self, request: Request, *, number: int) -> Response:
        row = find_slo(number)
        slos.end_slo(number, actor=self.actor(), now=timezone.now())
        return answer_one(row, kind="slo", name=number)


class SloAccept(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(SLO, operation_id="accept_slo", description="Puts a proposal in force.")
    @once()
    def post(self, request: Request, *, number: int) -> Answer:
        slos.accept_proposal(number, actor=self.actor(), now=timezone.now())
        return done(find_slo(number))


class SloDismiss(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(SLO, operation_id="dismiss_slo", description="The proposal is not made again.")
    @once()
    def post(self, request: Request, *, number: int) -> Answer:
        slos.dismiss_proposal(number, actor=self.actor(), now=timezone.now())
        return done(find_slo(number))


class SloHold(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(SLO, request=HoldInput, operation_id="hold_slo")
    @once()
    def post(self, request: Request, *, number: int) -> Answer:
        seconds = self.read_body(HoldInput)["lasts_s"]
        lasts = None if seconds is None else timedelta(seconds=seconds)
        slos.hold_slo(number, lasts=lasts, actor=self.actor(), now=timezone.now())
        return done(find_slo(number))
