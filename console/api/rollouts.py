"""Gray rollouts: started, watched, paused, promoted and taken back. Repeating a call changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.documentation import LIMIT, OFFSET, describe_post, describe_read
from console.api.rollout_inputs import RolloutInput, StreamsInput, read_wish
from console.api.shapes import page_of, shape_of, to_json
from console.api.views import PoolView, answer_one, created, done, once, present
from pool.domain.fit_report import FitReport
from pool.domain.release_diff import ReleaseDiff, Warn
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
from pool.services.rollouts import RolloutWish

Act = Callable[[str, Actor, datetime], tuple[Rollout, bool]]


@dataclass(frozen=True)
class RolloutPreview:
    """`replicas`: of the candidate by lane ("" = all lanes), as the start would ask for them."""

    dry_run: bool
    model: str
    candidate: int
    stable: int
    base_plan: int
    steps: tuple[Step, ...]
    """As the rollout would go by them: a swap of all replicas goes to full weight at once."""
    lanes: tuple[str, ...]
    replicas: dict[str, int]
    hold_s: int
    accept_outage: bool
    diff: ReleaseDiff
    fit: FitReport
    warnings: tuple[Warn, ...]
    refusal: str
    """Why a start would be refused for want of room; empty: it would not."""


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
        others={200: shape_of(RolloutPreview)},
        description="One at a time per model. Nothing is sent to the candidate before all of its replicas are warm. "
        "With `dry_run` the answer is 200 with what a start would do: the difference of the releases, and the memory "
        "of each device before, during and after. A start without room is refused with 409, and one that has room only "
        "once replicas of stable have stopped needs `accept_outage`.",
    )
    @once()
    def post(self, request: Request, *, model: str) -> Answer:
        body = self.read_body(RolloutInput)
        if body["dry_run"]:
            return Answer(200, to_json(_preview(model, read_wish(body))))
        found = rollouts.start_rollout(model, read_wish(body), actor=self.actor(), now=timezone.now())
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
    reports = rollouts.preview_reports(start, wish, now=timezone.now())
    return RolloutPreview(
        dry_run=True,
        model=model,
        candidate=start.candidate.number,
        stable=start.stable.number,
        base_plan=start.base.number,
        steps=reports.steps,
        lanes=wish.lanes,
        replicas=dict(start.scales),
        hold_s=wish.hold_s,
        accept_outage=wish.accept_outage,
        diff=reports.diff,
        fit=reports.fit,
        warnings=reports.warnings,
        refusal=reports.refusal,
    )
