"""Engine profiles: immutable settings under a name."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, once
from pool.queries.profiles import ProfileRow, find_profile, list_profiles
from pool.services import registration
from pool.services.idempotency import Answer

PROFILE = shape_of(ProfileRow)


class ProfileInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    settings = serializers.DictField(help_text="Engine settings; what is left out has the engine's default.")
    comment = serializers.CharField(max_length=4000, default="", allow_blank=True)


class ProfileList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(ProfileRow), parameters=(LIMIT, OFFSET), operation_id="list_profiles")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_profiles(limit=limit, offset=offset))

    @describe_post(
        PROFILE,
        request=ProfileInput,
        status=201,
        codes=("unprocessable", "profile_conflicts"),
        operation_id="create_profile",
    )
    @once()
    def post(self, request: Request) -> Answer:
        body = self.read_body(ProfileInput)
        profile = registration.register_profile(
            body["name"], body["settings"], comment=body["comment"], actor=self.actor()
        )
        return created(find_profile(profile.name))


class ProfileDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(PROFILE, operation_id="get_profile")
    def get(self, request: Request, *, name: str) -> Response:
        return answer_one(find_profile(name), kind="profile", name=name)
