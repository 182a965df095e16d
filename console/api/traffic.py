"""Traffic plans of a model: in force, history, a new one, and one click back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.shapes import page_of, shape_of, to_json
from console.api.views import PoolView, answer_one, created, once, present
from pool.queries.gateways import Acknowledgement, find_table_state, list_acknowledgements
from pool.queries.models import find_model
from pool.queries.plans import PlanRow, find_plan_in_force, list_plans
from pool.services import plans
from pool.services.errors import Invalid
from pool.services.idempotency import Answer
from pool.services.plans import PlanWish
from pool.services.rollback import roll_back_model

ACKNOWLEDGEMENT_WAIT_S = 1.0
_LOOK_EVERY_S = 0.05
_LARGEST = 2**31 - 1

PLAN = shape_of(PlanRow)


@dataclass(frozen=True)
class Rollback:
    """`gateways`: what each says of the plan's table, at most a second after it was written."""

    plan: PlanRow
    gateways: tuple[Acknowledgement, ...]


class PlanInput(serializers.Serializer[Any]):
    weights = serializers.DictField(
        child=serializers.IntegerField(min_value=0, max_value=100),
        help_text="Release number → percent; they sum to 100.",
    )
    lanes = serializers.DictField(
        child=serializers.DictField(child=serializers.IntegerField(min_value=0, max_value=100)),
        required=False,
        help_text="Weights that replace the general ones in a lane.",
    )
    pins = serializers.DictField(
        child=serializers.IntegerField(min_value=1, max_value=_LARGEST),
        required=False,
        help_text="Label of a caller's key → release number.",
    )
    shadow = serializers.DictField(required=False, allow_null=True)
    comment = serializers.CharField(max_length=4000, default="", allow_blank=True)


class RollbackInput(serializers.Serializer[Any]):
    to_plan = serializers.IntegerField(min_value=1, max_value=_LARGEST, allow_null=True, default=None)
    accept_outage = serializers.BooleanField(
        default=False,
        help_text="Put the older plan in force although none of its releases has a ready replica.",
    )


class PlanInForce(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(PLAN, operation_id="get_plan_in_force")
    def get(self, request: Request, *, model: str) -> Response:
        return answer_one(find_plan_in_force(model), kind="plan in force of model", name=model)


class PlanList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(PlanRow), parameters=(LIMIT, OFFSET), operation_id="list_plans")
    def get(self, request: Request, *, model: str) -> Response:
        present(find_model(model), kind="model", name=model)
        return self.answer_page(lambda limit, offset: list_plans(model, limit=limit, offset=offset))

    @describe_post(PLAN, request=PlanInput, status=201, operation_id="set_plan")
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(PlanInput)
        wish = PlanWish(
            weights=_weights("weights", body["weights"]),
            lanes={lane: _weights(f"lanes.{lane}", given) for lane, given in body.get("lanes", {}).items()},
            pins=body.get("pins", {}),
            shadow=body.get("shadow"),
            comment=body["comment"],
        )
        plans.set_plan(model, wish, actor=self.actor())
        return created(find_plan_in_force(model))


def add_acknowledgements(body: dict[str, Any]) -> dict[str, Any]:
    """Waits, after the commit, until every gateway says that it serves from the table, at most a second."""
    table = body.pop("table")
    deadline = time.monotonic() + ACKNOWLEDGEMENT_WAIT_S
    while True:
        found = list_acknowledgements(epoch=table["epoch"], version=table["version"])
        if all(gateway.applied_at for gateway in found) or time.monotonic() >= deadline:
            return body | {"gateways": to_json(found)}
        if not connection.in_atomic_block:
            connection.close()  # back to the pool while this waits
        time.sleep(_LOOK_EVERY_S)


class PlanRollback(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(
        shape_of(Rollback),
        request=RollbackInput,
        operation_id="roll_back",
        description="While the plan in force is itself a rollback, a call without `to_plan` changes nothing.",
    )
    @once(finish=add_acknowledgements)
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(RollbackInput)
        roll_back_model(
            model,
            to_plan=body["to_plan"],
            actor=self.actor(),
            now=timezone.now(),
            accept_outage=body["accept_outage"],
        )
        table = find_table_state()
        assert table is not None, "a plan was written with it"
        number = {"epoch": table.epoch, "version": table.version}
        return Answer(200, {"plan": to_json(find_plan_in_force(model)), "table": number})


def _weights(where: str, given: dict[str, int]) -> dict[int, int]:
    """JSON's names are text; here they are release numbers."""
    weights: dict[int, int] = {}
    for name, percent in given.items():
        if not (name.isascii() and name.isdigit() and 1 <= len(name) <= 9):
            raise Invalid(f"{where}: '{name[:20]}' is no release number.", where=where)
        weights[int(name)] = percent
    if len(weights) != len(given):
        raise Invalid(f"{where}: a release is named twice.", where=where)
    return weights
