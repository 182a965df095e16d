"""Models, their lanes and their gateway settings."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of, to_json
from console.api.views import PoolView, answer_one, created, once, present
from console.gateway_fields import api_fields
from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.queries.lanes import LaneRow, find_lane
from pool.queries.models import ModelRow, ModelView, find_model, find_model_view, list_models
from pool.services import catalog
from pool.services.gateway_settings import set_model_settings
from pool.services.idempotency import Answer
from pool.services.lanes import COLUMNS, LaneWish, set_lane, set_lanes, wish_default_lanes

MODEL = shape_of(ModelRow)


class LaneSettingsInput(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {**super().get_fields(), **api_fields(LaneSettings, without=COLUMNS)}


class LaneInput(LaneSettingsInput):
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


class LaneChange(serializers.Serializer[Any]):
    max_prompt_tokens = serializers.IntegerField(
        min_value=1, max_value=2**31 - 1, allow_null=True, required=False, help_text="null: up to the context"
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {**super().get_fields(), **api_fields(LaneSettings)}


class GatewaySettingsInput(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return api_fields(ModelSettings)


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

    @describe_write(
        MODEL,
        request=LanesInput,
        operation_id="set_lanes",
        description="All lanes, from short to long; a setting that is not named goes back to its default.",
    )
    def put(self, request: Request, *, model: str) -> Response:
        lanes = _lanes(self.read_body(LanesInput)["lanes"])
        set_lanes(model, lanes, actor=self.actor())
        return Response(to_json(present(find_model(model), kind="model", name=model)))


class ModelLane(PoolView):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE}

    @describe_read(shape_of(LaneRow), operation_id="get_lane")
    def get(self, request: Request, *, model: str, lane: str) -> Response:
        return answer_one(find_lane(model, lane), kind="lane", name=f"{model}/{lane}")

    @describe_write(
        shape_of(LaneRow),
        request=LaneChange,
        operation_id="change_lane",
        description="Only what is named changes; gateways follow within a second, without a restart.",
    )
    def patch(self, request: Request, *, model: str, lane: str) -> Response:
        set_lane(model, lane, self.read_body(LaneChange), actor=self.actor())
        return answer_one(find_lane(model, lane), kind="lane", name=f"{model}/{lane}")


class ModelGateway(PoolView):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE, "PATCH": Right.OPERATE}

    @describe_read(shape_of(ModelSettings), operation_id="get_gateway_settings")
    def get(self, request: Request, *, model: str) -> Response:
        return Response(to_json(present(find_model(model), kind="model", name=model).gateway))

    @describe_write(
        shape_of(ModelSettings),
        request=GatewaySettingsInput,
        operation_id="set_gateway_settings",
        description="What is not named goes back to its default.",
    )
    def put(self, request: Request, *, model: str) -> Response:
        return self._set(model, replace=True)

    @describe_write(
        shape_of(ModelSettings),
        request=GatewaySettingsInput,
        operation_id="change_gateway_settings",
        description="Only what is named changes.",
    )
    def patch(self, request: Request, *, model: str) -> Response:
        return self._set(model, replace=False)

    def _set(self, model: str, *, replace: bool) -> Response:
        settings = self.read_body(GatewaySettingsInput)
        return Response(to_json(set_model_settings(model, settings, actor=self.actor(), replace=replace)))


def _lanes(lanes: list[dict[str, Any]]) -> list[LaneWish]:
    return [
        LaneWish(
            name=lane.pop("name"),
            max_prompt_tokens=lane.pop("max_prompt_tokens"),
            concurrency=lane.pop("concurrency"),
            ttft_target_ms=lane.pop("ttft_target_ms"),
            settings=lane,
        )
        for lane in lanes
    ]
