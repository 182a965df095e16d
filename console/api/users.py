"""Users: made, put into groups, deactivated. For administrators."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, once
from pool.queries.keys import UserRow, find_user, list_users
from pool.services import users
from pool.services.idempotency import Answer
from pool.services.users import GROUPS

USER = shape_of(UserRow)


class UserInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    password = serializers.CharField(
        max_length=128,
        min_length=10,
        trim_whitespace=False,
        style={"input_type": "password"},
        write_only=True,
    )
    groups = serializers.ListField(child=serializers.ChoiceField(choices=GROUPS), default=list, max_length=3)


class UserChange(serializers.Serializer[Any]):
    groups = serializers.ListField(
        child=serializers.ChoiceField(choices=GROUPS), required=False, max_length=3
    )
    is_active = serializers.BooleanField(required=False)


class UserList(PoolView):
    rights = {"GET": Right.ADMINISTER, "POST": Right.ADMINISTER}

    @describe_read(page_of(UserRow), parameters=(LIMIT, OFFSET), operation_id="list_users")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_users(limit=limit, offset=offset))

    @describe_post(USER, request=UserInput, status=201, operation_id="create_user")
    @once()
    def post(self, request: Request) -> Answer:
        body = self.read_body(UserInput)
        users.create_user(body["name"], password=body["password"], groups=body["groups"], actor=self.actor())
        return created(find_user(body["name"]))


class UserDetail(PoolView):
    rights = {"GET": Right.ADMINISTER, "PATCH": Right.ADMINISTER}

    @describe_read(USER, operation_id="get_user")
    def get(self, request: Request, *, user_name: str) -> Response:
        return answer_one(find_user(user_name), kind="user", name=user_name)

    @describe_write(USER, request=UserChange, operation_id="change_user")
    def patch(self, request: Request, *, user_name: str) -> Response:
        body = self.read_body(UserChange)
        users.change_user(
            user_name, groups=body.get("groups"), is_active=body.get("is_active"), actor=self.actor()
        )
        return answer_one(find_user(user_name), kind="user", name=user_name)
