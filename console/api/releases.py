"""Releases of a model and how many replicas each is wished to have."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, done, once, present
from pool.queries.models import ReleaseRow, find_model, find_release, list_releases
from pool.services import catalog, registration
from pool.services.catalog import ReleaseWish
from pool.services.errors import Invalid
from pool.services.idempotency import Answer

RELEASE = shape_of(ReleaseRow)
MOST_REPLICAS = 512


class ReleaseInput(serializers.Serializer[Any]):
    version = serializers.CharField(max_length=63)
    profile = serializers.CharField(max_length=63, required=False, help_text="For all lanes.")
    profiles = serializers.DictField(
        child=serializers.CharField(max_length=63), required=False, help_text="Lane → profile."
    )
    runtime = serializers.CharField(max_length=63)
    replicas = serializers.IntegerField(min_value=0, max_value=MOST_REPLICAS, default=0)
    comment = serializers.CharField(max_length=4000, default="", allow_blank=True)


class ScaleInput(serializers.Serializer[Any]):
    replicas = serializers.IntegerField(min_value=0, max_value=MOST_REPLICAS)
    lane = serializers.CharField(
        max_length=63, default="", allow_blank=True, help_text="Empty: for all lanes."
    )
    accept_overload = serializers.BooleanField(
        default=False, help_text="Also if fewer replicas do not carry the present demand, as measured."
    )


class ReleaseList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(ReleaseRow), parameters=(LIMIT, OFFSET), operation_id="list_releases")
    def get(self, request: Request, *, model: str) -> Response:
        present(find_model(model), kind="model", name=model)
        return self.answer_page(lambda limit, offset: list_releases(model, limit=limit, offset=offset))

    @describe_post(
        RELEASE,
        request=ReleaseInput,
        status=201,
        codes=("unprocessable", "profile_conflicts"),
        operation_id="create_release",
    )
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(ReleaseInput)
        wish = ReleaseWish(
            version=body["version"],
            runtime=body["runtime"],
            profiles=_profiles(body),
            replicas=body["replicas"],
            comment=body["comment"],
        )
        release = registration.register_release(model, wish, actor=self.actor())
        return created(find_release(model, release.number))


class ReleaseDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(RELEASE, operation_id="get_release")
    def get(self, request: Request, *, model: str, number: int) -> Response:
        return answer_one(find_release(model, number), kind="release", name=number)


class ReleaseScale(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(
        RELEASE,
        request=ScaleInput,
        operation_id="scale_release",
        description="Scaling down is refused with 409 while fewer replicas do not carry the present demand as "
        "measured, and while a rollout stands on the replicas.",
    )
    @once()
    def post(self, request: Request, *, model: str, number: int) -> Answer:
        body = self.read_body(ScaleInput)
        catalog.set_scale(model, number, **body, actor=self.actor())
        return done(find_release(model, number))


def _profiles(body: dict[str, Any]) -> dict[str, str]:
    one, per_lane = body.get("profile"), body.get("profiles")
    if (one is None) == (per_lane is None):
        raise Invalid("Give either `profile`, for all lanes, or `profiles`, one for each lane.")
    return {"": one} if one is not None else dict(per_lane or {})
