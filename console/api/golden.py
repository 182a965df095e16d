"""Golden prompts of a model: made, changed, removed, recorded from the stable release, and the runs over them."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read, describe_write
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, once, present
from pool.domain.golden import (
    MATCHES,
    MAX_EXPECTED_CHARACTERS,
    MAX_MESSAGES,
    MAX_PROMPT_CHARACTERS,
    MAX_TOKENS,
    MAX_TOLERANCE,
    PROMPTS_PER_MODEL,
    ROLES,
)
from pool.queries.golden import (
    GoldenPromptRow,
    GoldenRunRow,
    find_prompt,
    find_recording,
    has_model,
    list_prompts,
    list_runs,
)
from pool.services.errors import not_found
from pool.services.golden_prompts import (
    GoldenWish,
    change_prompt,
    create_prompt,
    record_answers,
    remove_prompt,
)
from pool.services.idempotency import Answer

PROMPT, RUN = shape_of(GoldenPromptRow), shape_of(GoldenRunRow)
ROLLOUT = OpenApiParameter("rollout", str, description="Only those of this rollout.")


class GoldenMessage(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=ROLES)
    content = serializers.CharField(max_length=MAX_PROMPT_CHARACTERS, trim_whitespace=False)


class GoldenChange(serializers.Serializer[Any]):
    messages = serializers.ListField(child=GoldenMessage(), min_length=1, max_length=MAX_MESSAGES)
    max_tokens = serializers.IntegerField(min_value=1, max_value=MAX_TOKENS, default=32)
    match = serializers.ChoiceField(choices=MATCHES, default="exact")
    expected = serializers.CharField(
        max_length=MAX_EXPECTED_CHARACTERS,
        allow_blank=True,
        default="",
        trim_whitespace=False,
        help_text="Empty: to be recorded from the stable release; until then it blocks a rollout.",
    )
    tolerance = serializers.FloatField(
        min_value=0, max_value=MAX_TOLERANCE, default=0.0, help_text="Of `logprob`: nats per token."
    )
    required = serializers.BooleanField(  # type: ignore[assignment]
        default=True, help_text="False: a difference is told, not acted on."
    )
    hot = serializers.BooleanField(default=False, help_text="Replayed in warm-ups, so that it is cached.")


class GoldenInput(GoldenChange):
    name = serializers.CharField(max_length=63)


class RecordInput(serializers.Serializer[Any]):
    names = serializers.ListField(
        child=serializers.CharField(max_length=63),
        default=list,
        max_length=PROMPTS_PER_MODEL,
        help_text="Also those that have an answer. Empty: all that have none.",
    )


class RunFilter(serializers.Serializer[Any]):
    rollout = serializers.CharField(max_length=16, required=False, default="", allow_blank=True)


def _require_model(name: str) -> None:
    if not has_model(name):
        raise not_found("model", name)


def _wish(name: str, body: dict[str, Any]) -> GoldenWish:
    messages = tuple((one["role"], one["content"]) for one in body.pop("messages"))
    return GoldenWish(name=name, messages=messages, **body)


class GoldenPromptList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(GoldenPromptRow), parameters=(LIMIT, OFFSET), operation_id="list_golden_prompts")
    def get(self, request: Request, *, model: str) -> Response:
        _require_model(model)
        return self.answer_page(lambda limit, offset: list_prompts(model, limit=limit, offset=offset))

    @describe_post(
        PROMPT,
        request=GoldenInput,
        status=201,
        operation_id="create_golden_prompt",
        description="Asked of a candidate before its first weight and at each step: a required one that differs "
        "stops the rollout.",
    )
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(GoldenInput)
        row = create_prompt(model, _wish(body.pop("name"), body), actor=self.actor())
        return created(find_prompt(model, row.name))


class GoldenPromptDetail(PoolView):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE, "DELETE": Right.OPERATE}

    @describe_read(PROMPT, operation_id="get_golden_prompt")
    def get(self, request: Request, *, model: str, name: str) -> Response:
        return answer_one(find_prompt(model, name), kind="golden prompt", name=name)

    @describe_write(PROMPT, request=GoldenChange, operation_id="change_golden_prompt")
    def put(self, request: Request, *, model: str, name: str) -> Response:
        change_prompt(model, _wish(name, self.read_body(GoldenChange)), actor=self.actor())
        return answer_one(find_prompt(model, name), kind="golden prompt", name=name)

    @describe_write(PROMPT, operation_id="delete_golden_prompt", description="Answers as it was.")
    def delete(self, request: Request, *, model: str, name: str) -> Response:
        row = present(find_prompt(model, name), kind="golden prompt", name=name)
        remove_prompt(model, name, actor=self.actor())
        return answer_one(row, kind="golden prompt", name=name)


class GoldenRecord(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(
        RUN,
        request=RecordInput,
        status=201,
        codes=("no_stable_replica",),
        operation_id="record_golden_answers",
        description="Asks a ready replica of the stable release. Its answers become the expected ones.",
    )
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        names = self.read_body(RecordInput)["names"]
        record_answers(model, names=names, actor=self.actor(), now=timezone.now())
        return created(find_recording(model))


class GoldenRunList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        page_of(GoldenRunRow),
        parameters=(ROLLOUT, LIMIT, OFFSET),
        operation_id="list_golden_runs",
        description="Newest first, recordings included.",
    )
    def get(self, request: Request, *, model: str) -> Response:
        _require_model(model)
        rollout = self.read_query(RunFilter)["rollout"] or None
        return self.answer_page(
            lambda limit, offset: list_runs(model, rollout=rollout, limit=limit, offset=offset)
        )
