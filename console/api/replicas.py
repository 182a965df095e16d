"""Replicas: where each runs, how far it is, and what an operator may ask of it."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.shapes import page_of, shape_of
from console.api.views import PoolView, answer_one, done, once
from pool.queries.replicas import ReplicaRow, ReplicaView, find_replica, list_replicas
from pool.services import wishes
from pool.services.idempotency import Answer

REPLICA = shape_of(ReplicaView)


class ReplicaQuery(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=63, default="", allow_blank=True)
    phase = serializers.CharField(max_length=16, default="", allow_blank=True)
    node = serializers.CharField(max_length=63, default="", allow_blank=True)


class ReplicaList(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        page_of(ReplicaRow), parameters=(LIMIT, OFFSET, ReplicaQuery), operation_id="list_replicas"
    )
    def get(self, request: Request) -> Response:
        filters = self.read_query(ReplicaQuery)
        now = timezone.now()
        return self.answer_page(
            lambda limit, offset: list_replicas(now=now, limit=limit, offset=offset, **filters)
        )


class ReplicaDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(REPLICA, operation_id="get_replica")
    def get(self, request: Request, *, replica_id: str) -> Response:
        return answer_one(find_replica(replica_id, now=timezone.now()), kind="replica", name=replica_id)


class UnloadInput(serializers.Serializer[Any]):
    accept_overload = serializers.BooleanField(
        default=False, help_text="Also if the rest does not carry the present demand, as measured."
    )


class ReplicaDrain(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(
        REPLICA,
        request=UnloadInput,
        operation_id="drain_replica",
        description="It ends after what it runs; another one starts if the scale asks for it. Refused while the "
        "rest does not carry the present demand.",
    )
    @once()
    def post(self, request: Request, *, replica_id: str) -> Answer:
        wishes.ask_drain(replica_id, actor=self.actor(), **self.read_body(UnloadInput))
        return done(find_replica(replica_id, now=timezone.now()))


class ReplicaRestart(PoolView):
    rights = {"POST": Right.OPERATE}

    @describe_post(
        REPLICA,
        request=UnloadInput,
        operation_id="restart_replica",
        description="Drained, then started again. Refused with 409 while the rest does not carry the present demand.",
    )
    @once()
    def post(self, request: Request, *, replica_id: str) -> Answer:
        wishes.ask_restart(replica_id, actor=self.actor(), **self.read_body(UnloadInput))
        return done(find_replica(replica_id, now=timezone.now()))
