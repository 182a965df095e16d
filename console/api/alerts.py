"""Alerts with their history, restrictions of the gateways, rules, and webhooks."""

from __future__ import annotations

from dataclasses import dataclass
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
from console.api.slos import HoldInput
from console.api.views import PoolView, answer_one, created, done, once, present
from pool.domain.ladder import AVAILABLE
from pool.queries.alerts import (
    AlertRow,
    EventRow,
    RestrictionRow,
    RuleRow,
    WebhookRow,
    find_alert,
    find_restriction,
    find_rule,
    find_webhook,
    list_alerts,
    list_events,
    list_restrictions,
    list_rules,
    list_webhooks,
)
from pool.services import alerts, webhooks
from pool.services.alert_rules import change_rule
from pool.services.idempotency import Answer
from pool.services.restrictions import RestrictionWish, restrict, take_back
from pool.services.webhooks import TELLING, WebhookWish

ALERT, RESTRICTION, RULE, WEBHOOK = map(shape_of, (AlertRow, RestrictionRow, RuleRow, WebhookRow))
STATE = OpenApiParameter("state", str, enum=["open", "closed"], description="Only these.")
MODEL = OpenApiParameter("model", str, description="Only of this model.")


@dataclass(frozen=True)
class AlertView:
    """`events`: the newest first."""

    alert: AlertRow
    events: tuple[EventRow, ...]
    restrictions: tuple[RestrictionRow, ...]


class AlertFilter(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=["open", "closed"], required=False)
    model = serializers.CharField(max_length=63, required=False, default="", allow_blank=True)


class RestrictionFilter(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=63, required=False, default="", allow_blank=True)
    active = serializers.BooleanField(required=False, allow_null=True, default=None)


class RestrictionInput(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=63)
    kind = serializers.ChoiceField(choices=sorted(step.value for step in AVAILABLE))
    lane = serializers.CharField(max_length=63, default="", allow_blank=True, help_text="Empty: all lanes.")
    value = serializers.FloatField(
        min_value=0.01,
        max_value=0.99,
        allow_null=True,
        default=None,
        help_text="Of `admission_ratio`; null: 0.8.",
    )
    lasts_s = serializers.FloatField(
        min_value=10, max_value=86_400, help_text="Then gateways end it by themselves."
    )
    reason = serializers.CharField(max_length=300, default="", allow_blank=True)


class RuleInput(serializers.Serializer[Any]):
    settings = serializers.DictField(
        help_text='`{"enter": {"yellow": 0.7}, "enter_hold_s": 30, "off": false}`; `{}`: the defaults again.'
    )


class WebhookInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    url = serializers.CharField(max_length=500)
    least_level = serializers.ChoiceField(choices=TELLING, default="yellow")


class WebhookChange(serializers.Serializer[Any]):
    enabled = serializers.BooleanField()


class NewWebhook(WEBHOOK):  # type: ignore[misc, valid-type]
    secret = serializers.CharField(
        allow_null=True, help_text="Signs notices (`x-sluice-signature`). Null when the answer is repeated."
    )


class AlertList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(AlertRow), parameters=(STATE, MODEL, LIMIT, OFFSET), operation_id="list_alerts")
    def get(self, request: Request) -> Response:
        query = self.read_query(AlertFilter)
        is_open = {"open": True, "closed": False}.get(query.get("state", ""))
        return self.answer_page(
            lambda limit, offset: list_alerts(
                is_open=is_open, model=query["model"], limit=limit, offset=offset
            )
        )


class AlertDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(shape_of(AlertView), operation_id="get_alert")
    def get(self, request: Request, *, number: int) -> Response:
        row = present(find_alert(number), kind="alert", name=number)
        view = AlertView(row, list_events(number), list_restrictions(alert=number))
        return answer_one(view, kind="alert", name=number)


class AlertAcknowledge(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(ALERT, operation_id="acknowledge_alert", description="A second time changes nothing.")
    @once()
    def post(self, request: Request, *, number: int) -> Answer:
        alerts.acknowledge(number, actor=self.actor(), now=timezone.now())
        return done(find_alert(number))


class AlertHold(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(ALERT, request=HoldInput, operation_id="hold_alert")
    @once()
    def post(self, request: Request, *, number: int) -> Answer:
        seconds = self.read_body(HoldInput)["lasts_s"]
        lasts = None if seconds is None else timedelta(seconds=seconds)
        alerts.hold(number, lasts=lasts, actor=self.actor(), now=timezone.now())
        return done(find_alert(number))


class RestrictionList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(
        page_of(RestrictionRow),
        parameters=(MODEL, OpenApiParameter("active", bool, description="Only those that hold, or only the others."),
                    LIMIT, OFFSET),
        operation_id="list_restrictions",
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        query = self.read_query(RestrictionFilter)
        return self.answer_page(
            lambda limit, offset: list_restrictions(
                model=query["model"], is_active=query["active"], limit=limit, offset=offset
            )
        )

    @describe_post(
        RESTRICTION,
        request=RestrictionInput,
        status=201,
        operation_id="create_restriction",
        description="One of the same kind and lane that holds already is prolonged.",
    )
    @once()
    def post(self, request: Request) -> Answer:
        body = self.read_body(RestrictionInput)
        wish = RestrictionWish(
            body["kind"], body["lane"], body["value"], timedelta(seconds=body["lasts_s"]), body["reason"]
        )
        row = restrict(body["model"], wish, actor=self.actor(), now=timezone.now())
        return created(find_restriction(row.pk))


class RestrictionDetail(PoolView):
    rights = {"GET": Right.VIEW, "DELETE": Right.OPERATE}

    @describe_read(RESTRICTION, operation_id="get_restriction")
    def get(self, request: Request, *, number: int) -> Response:
        return answer_one(find_restriction(number), kind="restriction", name=number)

    @describe_write(RESTRICTION, operation_id="end_restriction", description="Takes it back.")
    def delete(self, request: Request, *, number: int) -> Response:
        take_back(number, actor=self.actor(), now=timezone.now())
        return answer_one(find_restriction(number), kind="restriction", name=number)


class RuleList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(page_of(RuleRow), parameters=(LIMIT, OFFSET), operation_id="list_rules")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_rules()[offset : offset + limit])


class RuleDetail(PoolView):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @describe_read(RULE, operation_id="get_rule")
    def get(self, request: Request, *, name: str) -> Response:
        return answer_one(find_rule(name), kind="rule", name=name)

    @describe_write(RULE, request=RuleInput, operation_id="change_rule")
    def put(self, request: Request, *, name: str) -> Response:
        body = self.read_body(RuleInput)
        change_rule(name, body["settings"], actor=self.actor(), now=timezone.now())
        return answer_one(find_rule(name), kind="rule", name=name)


class WebhookList(PoolView):
    rights = {"GET": Right.ADMINISTER, "POST": Right.ADMINISTER}

    @describe_read(page_of(WebhookRow), parameters=(LIMIT, OFFSET), operation_id="list_webhooks")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_webhooks()[offset : offset + limit])

    @describe_post(
        NewWebhook, request=WebhookInput, status=201, operation_id="create_webhook", codes=("unsafe_url",)
    )
    @once(hidden=("secret",))
    def post(self, request: Request) -> Answer:
        wish = WebhookWish(**self.read_body(WebhookInput))
        row, secret = webhooks.create_webhook(wish, actor=self.actor(), now=timezone.now())
        return created(find_webhook(row.name), secret=secret)


class WebhookDetail(PoolView):
    rights = {"GET": Right.ADMINISTER, "PATCH": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @describe_read(WEBHOOK, operation_id="get_webhook")
    def get(self, request: Request, *, name: str) -> Response:
        return answer_one(find_webhook(name), kind="webhook", name=name)

    @describe_write(WEBHOOK, request=WebhookChange, operation_id="switch_webhook")
    def patch(self, request: Request, *, name: str) -> Response:
        webhooks.switch_webhook(name, enabled=self.read_body(WebhookChange)["enabled"], actor=self.actor())
        return answer_one(find_webhook(name), kind="webhook", name=name)

    @describe_write(WEBHOOK, operation_id="delete_webhook", description="Answers as it was.")
    def delete(self, request: Request, *, name: str) -> Response:
        row = find_webhook(name)
        webhooks.remove_webhook(name, actor=self.actor())
        return answer_one(row, kind="webhook", name=name)
