"""Runs of golden prompts: wished for a stage of a rollout, or to record; carried out by the replica's node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from pool.domain.golden import (
    OPEN,
    RETRY_AFTER,
    TRIES,
    Given,
    Outcome,
    Question,
    find_loss,
    judge,
    question_to_json,
)
from pool.models import GoldenPrompt, GoldenRun, Intent, Replica, Rollout, RolloutEvent
from pool.queries.golden import list_questions, read_golden
from pool.services.audit import Actor, record

__all__ = [
    "ask_golden",
    "begin_run",
    "fail_run",
    "note_outcomes",
    "read_golden",
    "store_recording",
    "store_run",
]
REASON_CHARACTERS = 500


def ask_golden(rollout: Rollout, stage: str, now: datetime) -> int:
    """Of one ready replica of the candidate per lane, where that is not asked yet; how many it asked now.

    To be called at each pass: what is open or answered is left alone, what failed is tried again a few times, and
    changed prompts are asked anew.
    """
    questions = [question_to_json(one) for one in list_questions(rollout.model_id)]
    if not questions:
        return 0
    ready: dict[str, Replica] = {}
    for replica in (
        Replica.objects.filter(release_id=rollout.candidate_id, phase="ready", node__isnull=False)
        .select_related("node")
        .order_by("pk")
    ):
        ready.setdefault(replica.lane, replica)
    return sum(_ask_lane(rollout, stage, replica, questions, now) for replica in ready.values())


def _ask_lane(
    rollout: Rollout, stage: str, replica: Replica, questions: list[dict[str, Any]], now: datetime
) -> bool:
    runs = list(
        GoldenRun.objects.filter(rollout=rollout, stage=stage, lane=replica.lane)
        .select_related("replica")
        .order_by("id")
    )
    if runs and runs[-1].phase in OPEN and not _give_up(runs[-1], now):
        return False
    same = [run for run in runs if run.questions == questions]
    if same and same[-1].phase == "done":
        return False
    failed = [run for run in same if run.phase != "done"]
    if len(failed) >= TRIES or any(
        run.done_at is not None and now - run.done_at < RETRY_AFTER for run in failed
    ):
        return False
    try:
        create_run(replica, questions, model_id=rollout.model_id, rollout=rollout, stage=stage, now=now)
    except IntegrityError:
        return False  # Another pass asked meanwhile: the constraint lets one through.
    return True


def create_run(
    replica: Replica,
    questions: list[dict[str, Any]],
    *,
    model_id: int,
    stage: str,
    now: datetime,
    rollout: Rollout | None = None,
    asked_by: str = "",
) -> GoldenRun:
    """Of a replica that has a node. Raises IntegrityError while one is open."""
    assert replica.node is not None
    with transaction.atomic():
        intent = Intent.objects.create(
            node=replica.node, replica=replica, generation=replica.generation, action="golden"
        )
        return GoldenRun.objects.create(
            rollout=rollout,
            model_id=model_id,
            stage=stage,
            lane=replica.lane,
            replica=replica,
            generation=replica.generation,
            intent=intent,
            questions=questions,
            asked_by=asked_by,
            asked_at=now,
        )


def _give_up(run: GoldenRun, now: datetime) -> bool:
    """True where an open run can bring nothing any more: it is failed now."""
    lost = find_loss(
        asked_at=run.asked_at,
        generation=run.generation,
        current_generation=run.replica.generation,
        is_ready=run.replica.phase == "ready",
        now=now,
    )
    if lost is None:
        return False
    if run.intent_id is not None:
        open_intent = Intent.objects.filter(pk=run.intent_id, phase__in=["pending", "claimed"])
        open_intent.update(phase="void", done_at=now)
    fail_run(run.pk, *lost, now=now)
    run.refresh_from_db()
    return True


def give_up_lost(runs: Sequence[GoldenRun], now: datetime) -> None:
    for run in runs:
        _give_up(run, now)


def begin_run(intent: Intent, *, now: datetime) -> GoldenRun | None:
    """The run of an intent, running now; None where it is over or its replica has left meanwhile."""
    run = (
        GoldenRun.objects.select_related("replica")
        .filter(intent=intent, phase__in=OPEN, generation=F("replica__generation"))
        .first()
    )
    if run is None or _give_up(run, now):
        return None
    GoldenRun.objects.filter(pk=run.pk, phase__in=OPEN).update(phase="running", outcomes=[])
    return run


def note_outcomes(run_id: int, outcomes: Sequence[Outcome]) -> bool:
    """Those so far. False: the run is over, so asking on is of no use."""
    return bool(_running(run_id).update(outcomes=[asdict(one) for one in outcomes]))


def store_run(run_id: int, outcomes: Sequence[Outcome], *, now: datetime) -> bool:
    """Also as an event of its rollout. False when it came too late."""
    stored = [asdict(one) for one in outcomes]
    with transaction.atomic():
        # First, as the pass that moves rollouts on takes it first, too.
        rollout = Rollout.objects.select_for_update().filter(golden_runs=run_id).first()
        if not _running(run_id).update(phase="done", done_at=now, outcomes=stored):
            return False
        if rollout is not None:
            _tell(rollout, GoldenRun.objects.get(pk=run_id), outcomes, now)
    return True


def _tell(rollout: Rollout, run: GoldenRun, outcomes: Sequence[Outcome], now: datetime) -> None:
    summary = judge(outcomes, asked_of=len(run.questions))
    facts = {
        "stage": run.stage,
        "lane": run.lane,
        "replica": run.replica_id,
        "asked": summary.asked,
        "matched": summary.matched,
        "differing": list(summary.differing),
    }
    RolloutEvent.objects.create(
        rollout=rollout,
        at=now,
        kind="golden",
        code=summary.judgement.value,
        text=f"{run.stage[:1].upper()}{run.stage[1:]}: {summary.text}.",
        facts=facts,
    )
    newest = {**facts, "judgement": summary.judgement.value, "text": summary.text, "at": now.isoformat()}
    key = f"{run.stage} {run.lane}".strip()
    Rollout.objects.filter(pk=rollout.pk).update(golden=rollout.golden | {key: newest})


def store_recording(run_id: int, answers: Mapping[str, Given], *, now: datetime) -> bool:
    """As the expected answers of those prompts that still ask the same. False when it came too late."""
    with transaction.atomic():
        if not _running(run_id).update(phase="done", done_at=now):
            return False
        run = GoldenRun.objects.select_related("replica__release", "model").get(pk=run_id)
        asked = {content["name"]: content for content in run.questions}
        outcomes, kept = [], []
        for prompt in GoldenPrompt.objects.select_for_update().filter(model=run.model, name__in=answers):
            given = answers[prompt.name]
            why = given.refused or _why_not(prompt, asked[prompt.name], given)
            outcomes.append(Outcome(prompt.name, not why, why, given.text[:200], prompt.required))
            if not why:
                _keep(prompt, given, run, now)
                kept.append(prompt.name)
        GoldenRun.objects.filter(pk=run_id).update(outcomes=[asdict(one) for one in outcomes])
        actor = Actor(name=run.asked_by, source="loop")
        subject, release = f"model/{run.model.name}", run.replica.release.number
        record(actor, "golden.record", subject=subject, prompts=sorted(kept), release=release)
    return True


def _why_not(prompt: GoldenPrompt, asked: Mapping[str, Any], given: Given) -> str:
    if [[one["role"], one["content"]] for one in prompt.messages] != asked["messages"]:
        return "The prompt was changed meanwhile: record it again."
    if not given.text.strip():
        return "The answer is empty."
    if prompt.match == "logprob" and given.mean_logprob is None:
        return "The engine did not say log-probabilities of a prompt."
    return ""


def _keep(prompt: GoldenPrompt, given: Given, run: GoldenRun, now: datetime) -> None:
    prompt.expected = given.text
    prompt.expected_logprob = given.mean_logprob
    prompt.recorded_from = run.replica.release.number
    prompt.recorded_at = now
    prompt.save(update_fields=["expected", "expected_logprob", "recorded_from", "recorded_at"])


def fail_run(run_id: int, code: str, text: str, *, now: datetime) -> bool:
    return bool(
        GoldenRun.objects.filter(pk=run_id, phase__in=OPEN).update(
            phase="failed", done_at=now, reason_code=code, reason_text=text[:REASON_CHARACTERS]
        )
    )


def _running(run_id: int) -> Any:
    return GoldenRun.objects.filter(pk=run_id, phase="running", generation=F("replica__generation"))


def as_json(questions: Sequence[Question]) -> list[dict[str, Any]]:
    return [question_to_json(one) for one in questions]
