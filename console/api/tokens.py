"""Tokens of the API. Everybody has their own; administrators see and revoke all."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right, can
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, once
from pool.models import ApiToken
from pool.queries.keys import TokenRow, find_token, list_tokens, token_row
from pool.services import keys
from pool.services.errors import not_found
from pool.services.idempotency import Answer

TOKEN = shape_of(TokenRow)


class TokenInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)


class NewToken(TOKEN):  # type: ignore[misc, valid-type]
    token = serializers.CharField(allow_null=True, help_text="Shown once: null when the answer is repeated.")


class TokenList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.VIEW}

    @describe_read(page_of(TokenRow), parameters=(LIMIT, OFFSET), operation_id="list_tokens")
    def get(self, request: Request) -> Response:
        user = "" if can(self.request.user, Right.ADMINISTER) else self.request.user.get_username()
        return self.answer_page(lambda limit, offset: list_tokens(user=user, limit=limit, offset=offset))

    @describe_post(
        NewToken,
        request=TokenInput,
        status=201,
        operation_id="create_token",
        description="It acts as its maker.",
    )
    @once(hidden=("token",))
    def post(self, request: Request) -> Answer:
        assert isinstance(self.request.user, User), "the right to view says so"
        name = self.read_body(TokenInput)["name"]
        row, value = keys.create_token(self.request.user, name=name, actor=self.actor())
        return created(token_row(row), token=value)


class TokenDetail(PoolView):
    rights = {"DELETE": Right.VIEW}

    @describe_write(TOKEN, operation_id="revoke_token")
    def delete(self, request: Request, *, token_id: str) -> Response:
        token = self._own_token(token_id)
        keys.revoke_token(token, actor=self.actor())
        return answer_one(find_token(token_id), kind="token", name=token_id)

    def _own_token(self, token_id: str) -> ApiToken:
        """Another user's token is not there for somebody who may not administer."""
        token = (
            ApiToken.objects.select_related("user").filter(pk=token_id).first()
            if token_id.isdigit()
            else None
        )
        if token is None or not (token.user == self.request.user or can(self.request.user, Right.ADMINISTER)):
            raise not_found("token", token_id)
        return token
