"""Profiler runs over a few steps of one replica: wished, listed, read with their flame graph."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, created, once, present
from pool.domain.step_profiles import MAX_STEPS, USUAL_STEPS
from pool.queries.replicas import has_replica
from pool.queries.step_profiles import StepProfileRow, StepProfileView, find_profile, list_profiles
from pool.services.errors import not_found
from pool.services.idempotency import Answer
from pool.services.step_profiles import ask_profile

REFUSALS = ("replica_not_ready", "engine_is_simulated", "profile_is_open")


class ProfileBody(serializers.Serializer[Any]):
    steps = serializers.IntegerField(min_value=1, max_value=MAX_STEPS, default=USUAL_STEPS)


class StepProfileList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(
        page_of(StepProfileRow),
        parameters=(LIMIT, OFFSET),
        operation_id="list_step_profiles",
        description="Newest first; the newest 5 of a replica are kept.",
    )
    def get(self, request: Request, *, replica_id: str) -> Response:
        if not has_replica(replica_id):
            raise not_found("replica", replica_id)
        now = timezone.now()
        return self.answer_page(
            lambda limit, offset: list_profiles(replica_id, now=now, limit=limit, offset=offset)
        )

    @describe_post(
        shape_of(StepProfileView),
        request=ProfileBody,
        status=201,
        codes=REFUSALS,
        operation_id="take_step_profile",
        description="The engine stands still for about a second, longer for a large model, while it writes its "
        "trace; its requests wait. An idle engine makes no steps: the run then fails after 20 s.",
    )
    @once()
    def post(self, request: Request, *, replica_id: str) -> Answer:
        body = self.read_body(ProfileBody)
        run = ask_profile(replica_id, steps=body["steps"], actor=self.actor())
        found = find_profile(replica_id, run.pk, now=timezone.now())
        return created(present(found, kind="profile", name=run.pk))


class StepProfileDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(StepProfileView),
        operation_id="get_step_profile",
        description="`flame` is `{name, part, value, children}`: seconds over all steps, with the children's.",
    )
    def get(self, request: Request, *, replica_id: str, number: int) -> Response:
        found = find_profile(replica_id, number, now=timezone.now())
        return answer_one(found, kind="profile", name=number)
