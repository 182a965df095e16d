"""Memory: devices and room of the pool, KV caches of a model's replicas, and ratios over time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import describe_read
from console.api.moments import Moment
from console.api.shapes import shape_of, to_json
from console.api.views import PoolView, present
from pool.queries.device_memory import PoolMemory, load_pool_memory
from pool.queries.memory_map import ModelMemory, load_memory
from pool.queries.memory_ratios import RatioKind, RatioMap, load_ratio_map
from pool.queries.models import find_model

LONGEST = timedelta(days=31)


class MapQuery(serializers.Serializer[Any]):
    """`from` is a keyword in Python, so the fields are made below."""

    kind = serializers.ChoiceField(choices=[kind.value for kind in RatioKind], default=RatioKind.KV_USE.value)
    model = serializers.CharField(max_length=63, default="", allow_blank=True)
    minutes = serializers.IntegerField(
        min_value=1,
        max_value=31 * 24 * 60,
        default=60,
        help_text="Up to now, where `from` and `to` are absent.",
    )
    to = Moment(default=None, help_text="Default: now.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields["from"] = Moment(default=None, help_text="Default: `minutes` before `to`.")
        return fields

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        end: datetime = given["to"] or timezone.now()
        start: datetime = given["from"] or end - timedelta(minutes=given["minutes"])
        if not timedelta(seconds=1) <= end - start <= LONGEST:
            raise serializers.ValidationError(
                {"from": "It must lie between 1 second and 31 days before `to`."}
            )
        return {**given, "start": start, "end": end}


class PoolMemoryView(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(PoolMemory),
        operation_id="get_pool_memory",
        description="Who holds each device's memory, and what fits. The parts of a device add up to its total; "
        "null is unknown.",
    )
    def get(self, request: Request) -> Response:
        now = timezone.now()
        return Response(to_json(load_pool_memory(load_memory(now=now).replicas, now=now)))


class ModelMemoryView(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(ModelMemory),
        operation_id="get_model_memory",
        description="KV caches of the model's replicas now, fragmentation by kind, prefix hits. null is unknown.",
    )
    def get(self, request: Request, *, model: str) -> Response:
        present(find_model(model), kind="model", name=model)
        return Response(to_json(load_memory(now=timezone.now(), model=model)))


class MemoryMapView(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(RatioMap),
        parameters=(MapQuery,),
        operation_id="get_memory_map",
        description="Replica × time of one ratio, 0 to 1; null where nothing was sampled.",
    )
    def get(self, request: Request) -> Response:
        asked = self.read_query(MapQuery)
        found = load_ratio_map(
            RatioKind(asked["kind"]),
            start=asked["start"],
            end=asked["end"],
            now=timezone.now(),
            model=asked["model"],
        )
        return Response(to_json(found))
