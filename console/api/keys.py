"""Callers' gateway keys: the key itself is in the first answer only."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, done, once
from pool.queries.keys import KeyRow, find_key, key_row, list_keys
from pool.services import keys
from pool.services.idempotency import Answer
from pool.services.keys import TIERS, KeyWish

KEY = shape_of(KeyRow)


class KeyInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    tier = serializers.ChoiceField(choices=TIERS, default="standard")
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=63),
        allow_null=True,
        default=None,
        max_length=500,
        help_text="null: all models.",
    )
    may_pin = serializers.BooleanField(default=False)
    label = serializers.CharField(  # type: ignore[assignment]  # a field of that name
        max_length=63, default="", allow_blank=True
    )


class NewKey(KEY):  # type: ignore[misc, valid-type]
    key = serializers.CharField(allow_null=True, help_text="Shown once: null when the answer is repeated.")


class KeyList(PoolView):
    rights = {"GET": Right.ADMINISTER, "POST": Right.ADMINISTER}

    @describe_read(page_of(KeyRow), parameters=(LIMIT, OFFSET), operation_id="list_keys")
    def get(self, request: Request) -> Response:
        return self.answer_page(lambda limit, offset: list_keys(limit=limit, offset=offset))

    @describe_post(NewKey, request=KeyInput, status=201, operation_id="create_key")
    @once(hidden=("key",))
    def post(self, request: Request) -> Answer:
        body = self.read_body(KeyInput)
        models = body.pop("allowed_models")
        wish = KeyWish(**body, allowed_models=None if models is None else tuple(dict.fromkeys(models)))
        row, value = keys.create_key(wish, actor=self.actor())
        return created(key_row(row), key=value)


class KeyDetail(PoolView):
    rights = {"GET": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @describe_read(KEY, operation_id="get_key")
    def get(self, request: Request, *, name: str) -> Response:
        return answer_one(find_key(name), kind="key", name=name)

    @describe_write(KEY, operation_id="delete_key", description="Revokes it; its name stays taken.")
    def delete(self, request: Request, *, name: str) -> Response:
        return answer_one(key_row(keys.revoke_key(name, actor=self.actor())), kind="key", name=name)


class KeyRevoke(PoolView):
    rights = {"POST": Right.ADMINISTER}

    @describe_post(KEY, operation_id="revoke_key", description="Gateways refuse it within a second.")
    @once()
    def post(self, request: Request, *, name: str) -> Answer:
        return done(key_row(keys.revoke_key(name, actor=self.actor())))
