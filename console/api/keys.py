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
from pool.services.keys import KEEPALIVE_RANGE_S, LARGEST_LIMIT, TIERS, KeyWish

KEY = shape_of(KeyRow)


class LimitsInput(serializers.Serializer[Any]):
    requests_per_min = serializers.IntegerField(
        min_value=1,
        max_value=LARGEST_LIMIT,
        allow_null=True,
        required=False,
        help_text="Over all gateways. null: no limit.",
    )
    tokens_per_min = serializers.IntegerField(
        min_value=1,
        max_value=LARGEST_LIMIT,
        allow_null=True,
        required=False,
        help_text="Prompt and answer, over all gateways. null: no limit.",
    )
    keepalive_s = serializers.FloatField(
        min_value=KEEPALIVE_RANGE_S[0],
        max_value=KEEPALIVE_RANGE_S[1],
        allow_null=True,
        required=False,
        help_text="A stream without a byte for so long gets a comment. null: never.",
    )
    capture_ratio = serializers.FloatField(
        min_value=0.0,
        max_value=1.0,
        required=False,
        help_text="Share of its requests whose texts are kept, masked, for a while. 0: none, and what was kept goes.",
    )


class KeyInput(LimitsInput):
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


class KeyChange(LimitsInput):
    tier = serializers.ChoiceField(choices=TIERS, required=False)
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=63),
        allow_null=True,
        required=False,
        max_length=500,
        help_text="null: all models.",
    )
    may_pin = serializers.BooleanField(required=False)
    label = serializers.CharField(  # type: ignore[assignment]  # a field of that name
        max_length=63, required=False, allow_blank=True
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
        row, value = keys.create_key(KeyWish(**_read(self, KeyInput)), actor=self.actor())
        return created(key_row(row), key=value)


class KeyDetail(PoolView):
    rights = {"GET": Right.ADMINISTER, "PATCH": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @describe_read(KEY, operation_id="get_key")
    def get(self, request: Request, *, name: str) -> Response:
        return answer_one(find_key(name), kind="key", name=name)

    @describe_write(
        KEY,
        request=KeyChange,
        operation_id="change_key",
        description="Only what is named changes; the key itself stays. Gateways follow within a second.",
    )
    def patch(self, request: Request, *, name: str) -> Response:
        key = keys.change_key(name, _read(self, KeyChange), actor=self.actor())
        return answer_one(key_row(key), kind="key", name=name)

    @describe_write(KEY, operation_id="delete_key", description="Revokes it; its name stays taken.")
    def delete(self, request: Request, *, name: str) -> Response:
        return answer_one(key_row(keys.revoke_key(name, actor=self.actor())), kind="key", name=name)


class KeyRevoke(PoolView):
    rights = {"POST": Right.ADMINISTER}

    @describe_post(KEY, operation_id="revoke_key", description="Gateways refuse it within a second.")
    @once()
    def post(self, request: Request, *, name: str) -> Answer:
        return done(key_row(keys.revoke_key(name, actor=self.actor())))


def _read(view: PoolView, kind: type[serializers.Serializer[Any]]) -> dict[str, Any]:
    body = view.read_body(kind)
    models = body.get("allowed_models")
    return body if models is None else body | {"allowed_models": tuple(dict.fromkeys(models))}
