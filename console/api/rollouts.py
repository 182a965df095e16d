"""Gray rollouts: started, watched, paused, promoted and taken back. Repeating a call changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.shapes import page_of, shape_of, to_json
from console.api.views import PoolView, answer_one, created, done, once, present
from pool.domain.rollout import Step
from pool.models import Rollout
from pool.queries.models import find_model
from pool.queries.rollout_rows import (
    READINGS_FOR,
    GateReadingRow,
    RolloutRow,
    RolloutView,
    find_rollout_view,
    list_readings,
    list_rollout_rows,
    rollout_row,
)
from pool.queries.rollouts import Proof, find_rollout, load_proof
from pool.services import rollouts
from pool.services.audit import Actor
from pool.services.idempotency import Answer
from pool.services.rollouts import DEFAULT_STEPS, RolloutWish

_LARGEST = 2**31 - 1
Act = Callable[[str, Actor, datetime], tuple[Rollout, bool]]


class StepInput(serializers.Serializer[Any]):
    weight = serializers.IntegerField(min_value=1, max_value=100, help_text="Percent for the candidate.")
    soak_s = serializers.IntegerField(min_value=0, max_value=rollouts.LONGEST_SOAK_S, default=300)
    min_requests = serializers.IntegerField(
        min_value=0,
        max_value=rollouts.MOST_REQUESTS,
        default=200,
        help_text="Of the candidate, in each lane that has traffic, since the step began.",
    )


class RolloutInput(serializers.Serializer[Any]):
    candidate = serializers.IntegerField(min_value=1, max_value=_LARGEST, help_text="Release number.")
    steps = StepInput(many=True, required=False)
    gates = serializers.DictField(
        required=False,
        help_text="{gate: {margin_ratio, margin_points, limit_ratio, limit_s, dry_run}}; docs/verdict.md names them.",
    )
    hold_s = serializers.IntegerField(min_value=0, max_value=rollouts.LONGEST_HOLD_S, default=1800)
    lanes = serializers.ListField(
        child=serializers.CharField(max_length=63),
        required=False,
        help_text="One lane after the other in this order, each with all steps; empty: all at once.",
    )
    replicas = serializers.IntegerField(min_value=1, max_value=512, required=False, allow_null=True)
    comment = serializers.CharField(max_length=4000, default="", allow_blank=True)
    dry_run = serializers.BooleanField(
        default=False, help_text="Tells what a start would do, and starts nothing."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """What is not known is refused: a start that leaves out a wish does something else than was asked for."""
        unknown = sorted(set(self.initial_data) - set(self.fields))
        if unknown:
            raise serializers.ValidationError(dict.fromkeys(unknown, "There is no such field."))
        return attrs


@dataclass(frozen=True)
class RolloutPreview:
    """`replicas`: of the candidate by lane ("" = all lanes), as the start would ask for them."""

    dry_run: bool
    model: str
    candidate: int
    stable: int
    base_plan: int
    steps: tuple[dict[str, int], ...]
    lanes: tuple[str, ...]
    replicas: dict[str, int]
    hold_s: int


class StreamsInput(serializers.Serializer[Any]):
    end_after_tokens = serializers.IntegerField(
        min_value=0,
        max_value=100_000,
        required=False,
        allow_null=True,
        default=None,
        help_text="Running streams of the candidate end after so many more tokens; without it they finish.",
    )


class RolloutList(PoolView):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @describe_read(page_of(RolloutRow), parameters=(LIMIT, OFFSET), operation_id="list_rollouts")
    def get(self, request: Request, *, model: str) -> Response:
        present(find_model(model), kind="model", name=model)
        return self.answer_page(lambda limit, offset: list_rollout_rows(model, limit=limit, offset=offset))

    @describe_post(
        shape_of(RolloutRow),
        request=RolloutInput,
        status=201,
        operation_id="start_rollout",
        description="One at a time per model. Nothing is sent to the candidate before all of its replicas are warm. "
        "With `dry_run` the answer is 200 with what a start would do: `{dry_run, model, candidate, stable, base_plan, "
        "steps, lanes, replicas, hold_s}`.",
    )
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(RolloutInput)
        if body["dry_run"]:
            return Answer(200, to_json(_preview(model, _wish(body))))
        found = rollouts.start_rollout(model, _wish(body), actor=self.actor(), now=timezone.now())
        return created(rollout_row(found))


class RolloutDetail(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(shape_of(RolloutView), operation_id="get_rollout")
    def get(self, request: Request, *, rollout_id: str) -> Response:
        return answer_one(find_rollout_view(rollout_id, now=timezone.now()), kind="rollout", name=rollout_id)


class RolloutReadings(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        page_of(GateReadingRow),
        parameters=(LIMIT, OFFSET),
        operation_id="list_gate_readings",
        description="What each gate said over the last six hours, oldest first.",
    )
    def get(self, request: Request, *, rollout_id: str) -> Response:
        present(find_rollout(rollout_id), kind="rollout", name=rollout_id)
        since = timezone.now() - timedelta(seconds=READINGS_FOR.total_seconds())
        rows = list_readings(rollout_id, since=since)
        return self.answer_page(lambda limit, offset: rows[offset : offset + limit])


class RolloutProof(PoolView):
    rights = {"GET": Right.VIEW}

    @describe_read(
        shape_of(Proof),
        operation_id="get_rollout_proof",
        description="Which gateways serve the rollout's newest plan, and what still runs at the candidate.",
    )
    def get(self, request: Request, *, rollout_id: str) -> Response:
        rollout = present(find_rollout(rollout_id), kind="rollout", name=rollout_id)
        return answer_one(load_proof(rollout, timezone.now()), kind="rollout", name=rollout_id)


class _Action(PoolView):
    rights = {"POST": Right.OPERATE}

    def act(self, rollout_id: str, action: Act) -> Answer:
        rollout, changed = action(rollout_id, self.actor(), timezone.now())
        return done(rollout_row(rollout), changed=changed)


class RolloutPause(_Action):
    @describe_post(
        shape_of(RolloutRow),
        operation_id="pause_rollout",
        description="Weights stay, and the guard watches on.",
    )
    @once()
    def post(self, request: Request, *, rollout_id: str) -> Answer:
        return self.act(rollout_id, lambda name, actor, now: rollouts.pause(name, actor=actor, now=now))


class RolloutResume(_Action):
    @describe_post(
        shape_of(RolloutRow),
        operation_id="resume_rollout",
        description="The phase that was left begins anew.",
    )
    @once()
    def post(self, request: Request, *, rollout_id: str) -> Answer:
        return self.act(rollout_id, lambda name, actor, now: rollouts.resume(name, actor=actor, now=now))


class RolloutPromote(_Action):
    @describe_post(
        shape_of(RolloutRow),
        operation_id="promote_rollout",
        description="Full weight now, without waiting for the gates; it is then held like any other.",
    )
    @once()
    def post(self, request: Request, *, rollout_id: str) -> Answer:
        return self.act(rollout_id, lambda name, actor, now: rollouts.promote(name, actor=actor, now=now))


class RolloutRollback(_Action):
    @describe_post(
        shape_of(RolloutRow),
        request=StreamsInput,
        operation_id="roll_back_rollout",
        description="Before the first weight this aborts and writes no plan.",
    )
    @once()
    def post(self, request: Request, *, rollout_id: str) -> Answer:
        tokens = self.read_body(StreamsInput)["end_after_tokens"]
        streams = {} if tokens is None else {"end_after_tokens": tokens}
        return self.act(
            rollout_id,
            lambda name, actor, now: rollouts.roll_back(name, actor=actor, now=now, streams=streams),
        )


class RolloutFence(_Action):
    @describe_post(
        shape_of(RolloutRow),
        operation_id="fence_rollout",
        description="Stops the candidate's engines while a rollback runs: what runs there breaks off.",
    )
    @once()
    def post(self, request: Request, *, rollout_id: str) -> Answer:
        return self.act(rollout_id, lambda name, actor, now: rollouts.fence(name, actor=actor, now=now))


def _preview(model: str, wish: RolloutWish) -> RolloutPreview:
    start = rollouts.preview_rollout(model, wish)
    return RolloutPreview(
        dry_run=True,
        model=model,
        candidate=start.candidate.number,
        stable=start.stable.number,
        base_plan=start.base.number,
        steps=tuple(
            {"weight": step.weight, "soak_s": step.soak_s, "min_requests": step.min_requests}
            for step in wish.steps
        ),
        lanes=wish.lanes,
        replicas=dict(start.scales),
        hold_s=wish.hold_s,
    )


def _wish(body: dict[str, Any]) -> RolloutWish:
    steps = tuple(
        Step(step["weight"], step["soak_s"], step["min_requests"]) for step in body.get("steps") or ()
    )
    return RolloutWish(
        candidate=body["candidate"],
        steps=steps or DEFAULT_STEPS,
        gates=body.get("gates") or {},
        hold_s=body["hold_s"],
        lanes=tuple(body.get("lanes") or ()),
        replicas=body.get("replicas"),
        comment=body["comment"],
    )
