"""Models and their lanes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of, to_json
from console.api.views import PoolView, answer_one, created, once, present
from pool.queries.models import ModelRow, ModelView, find_model, find_model_view, list_models
from pool.services import catalog
from pool.services.idempotency import Answer
from pool.services.lanes import LaneWish, set_lanes, wish_default_lanes

MODEL = shape_of(ModelRow)


class LaneInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    max_prompt_tokens = serializers.IntegerField(
        min_value=1, max_value=2**31 - 1, allow_null=True, default=None, help_text="null: up to the context"
    )
    concurrency = serializers.IntegerField(min_value=1, max_value=100_000, default=8)
    ttft_target_ms = serializers.IntegerField(min_value=1, max_value=3_600_000, default=2000)


class ModelInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    owner = serializers.CharField(max_length=128, default="", allow_blank=True)
    description = serializers.CharField(max_length=4000, default="", allow_blank=True)
    lanes = LaneInput(  # type: ignore[call-arg]  # of a list
        many=True, required=False, help_text="Default: short, mid, long.", max_length=32
    )


class LanesInput(serializers.Serializer[Any]):
    lanes = LaneInput(many=True, max_length=32)  # type: ignore[call-arg]  # of a list


class ModelList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(ModelRow), parameters=(LIMIT, OFFSET), operation_id="list_models")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_models(limit=limit, offset=offset))

    @describe_post(MODEL, request=ModelInput, status=201, operation_id="create_model")
    @once()
    def post(self, request: Request) -> Answer:
        body = self.read_body(ModelInput)
        catalog.create_model(
            body["name"],
            lanes=_lanes(body["lanes"]) if "lanes" in body else wish_default_lanes(None),
            owner=body["owner"],
            description=body["description"],
            actor=self.actor(),
        )
        return created(find_model(body["name"]))


class ModelDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(shape_of(ModelView), operation_id="get_model")
    def get(self, request: Request, *, model: str) -> Response:
        return answer_one(find_model_view(model), kind="model", name=model)


class ModelLanes(PoolView):
    rights = {"PUT": Right.OPERATE}

    @describe_write(MODEL, request=LanesInput, operation_id="set_lanes")
    def put(self, request: Request, *, model: str) -> Response:
        lanes = _lanes(self.read_body(LanesInput)["lanes"])
        set_lanes(model, lanes, actor=self.actor())
        return Response(to_json(present(find_model(model), kind="model", name=model)))


def _lanes(lanes: list[dict[str, Any]]) -> list[LaneWish]:
    return [LaneWish(**lane) for lane in lanes]
