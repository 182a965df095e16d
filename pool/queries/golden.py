"""Golden prompts, the runs over them, and what they say of a rollout's candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pool.domain.golden import (
    OPEN,
    TRIES,
    Outcome,
    Question,
    Summary,
    combine,
    judge,
    question_to_json,
    read_messages,
    shared_prefix,
    stage_of,
)
from pool.domain.rollout import Judgement
from pool.models import GoldenPrompt, GoldenRun, Model, Replica, Rollout


@dataclass(frozen=True)
class GoldenPromptRow:
    """`expected_logprob`: nats per token at the release `recorded_from`; null until recorded. `newest`: what the newest
    finished run said of it: true, false, or null where it is not known."""

    name: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    match: str
    expected: str
    tolerance: float
    required: bool
    hot: bool
    expected_logprob: float | None
    recorded_from: int | None
    recorded_at: datetime | None
    created_by: str
    created_at: datetime
    newest: bool | None
    newest_why: str
    newest_at: datetime | None


@dataclass(frozen=True)
class GoldenOutcome:
    """`matches` null: it could not be told."""

    name: str
    matches: bool | None
    why: str
    text: str
    required: bool


@dataclass(frozen=True)
class GoldenRunRow:
    """`rollout` null: answers were recorded. `asked_of`: how many questions there were. `judgement`: worse, not_yet or
    not_worse; empty while open, after a failure and for a recording."""

    id: int
    rollout: str | None
    stage: str
    lane: str
    replica: str
    generation: int
    release: int
    phase: str
    asked_of: int
    judgement: str
    text: str
    outcomes: tuple[GoldenOutcome, ...]
    asked_at: datetime
    done_at: datetime | None


def has_model(name: str) -> bool:
    return Model.objects.filter(name=name).exists()


def list_prompts(model: str, *, limit: int = 500, offset: int = 0) -> tuple[GoldenPromptRow, ...]:
    """By name. 2 queries."""
    rows = GoldenPrompt.objects.filter(model__name=model).order_by("name")[offset : offset + limit]
    newest = _newest_outcomes(model)
    return tuple(_prompt_row(row, newest) for row in rows)


def find_prompt(model: str, name: str) -> GoldenPromptRow | None:
    row = GoldenPrompt.objects.filter(model__name=model, name=name).first()
    return None if row is None else _prompt_row(row, _newest_outcomes(model))


def list_runs(
    model: str, *, rollout: str | None = None, limit: int = 50, offset: int = 0
) -> tuple[GoldenRunRow, ...]:
    """Newest first. 1 query."""
    rows = GoldenRun.objects.filter(model__name=model).select_related("replica__release").order_by("-id")
    if rollout is not None:
        rows = rows.filter(rollout_id=rollout)
    return tuple(_run_row(row) for row in rows[offset : offset + limit])


def find_recording(model: str) -> GoldenRunRow | None:
    """The newest recording, open or over."""
    row = (
        GoldenRun.objects.filter(model__name=model, rollout=None)
        .select_related("replica__release")
        .order_by("-id")
    ).first()
    return None if row is None else _run_row(row)


def list_questions(model_id: int) -> tuple[Question, ...]:
    """By name; what a candidate is asked."""
    return tuple(to_question(row) for row in GoldenPrompt.objects.filter(model_id=model_id).order_by("name"))


def to_question(row: GoldenPrompt) -> Question:
    return Question(
        name=row.name,
        messages=read_messages(row.messages),
        max_tokens=row.max_tokens,
        match=row.match,
        expected=row.expected,
        tolerance=row.tolerance,
        required=row.required,
        reference=row.expected_logprob,
    )


def list_hot_conversations(model_id: int, *, most: int) -> tuple[tuple[tuple[str, str], ...], ...]:
    """What a warm-up replays so that it is cached: hot prompts whole, of others the system prompt; each once."""
    found: dict[tuple[tuple[str, str], ...], None] = {}
    for row in GoldenPrompt.objects.filter(model_id=model_id).order_by("-hot", "name"):
        messages = read_messages(row.messages)
        prefix = shared_prefix(messages)
        if row.hot:
            found[messages] = None
        elif prefix:
            # Templates ask for a user's turn; what comes after the prefix does not matter.
            found[(*prefix, ("user", "."))] = None
    return tuple(found)[:most]


def read_golden(rollout: Rollout, *, stage: str | None = None) -> tuple[Judgement, str]:
    """Of the rollout's present stage unless told. Without golden prompts nothing is in the way, and the text says that
    nothing was compared. 3 queries at most."""
    summary = summarise(rollout, stage or stage_of(rollout.step, len(rollout.steps)))
    return summary.judgement, summary.text


def summarise(rollout: Rollout, stage: str) -> Summary:
    questions = [question_to_json(one) for one in list_questions(rollout.model_id)]
    if not questions:
        return Summary(Judgement.NOT_WORSE, "no golden prompts: no answer was compared")
    runs = GoldenRun.objects.filter(rollout=rollout, stage=stage).order_by("id")
    by_lane: dict[str, list[GoldenRun]] = {}
    for run in runs:
        by_lane.setdefault(run.lane, []).append(run)
    ready = Replica.objects.filter(release_id=rollout.candidate_id, phase="ready")
    lanes = sorted({*by_lane, *ready.values_list("lane", flat=True)})
    if not lanes:
        return Summary(Judgement.NOT_YET, "golden prompts wait for a ready replica of the candidate")
    return combine([_summarise_lane(by_lane.get(lane, []), questions) for lane in lanes])


def _summarise_lane(runs: Sequence[GoldenRun], questions: Sequence[Mapping[str, object]]) -> Summary:
    """`runs`: oldest first."""
    if not runs:
        return Summary(Judgement.NOT_YET, "the golden prompts are asked")
    newest = runs[-1]
    if newest.phase in OPEN:
        asked = f"{len(newest.outcomes)} of {len(newest.questions)}"
        return Summary(Judgement.NOT_YET, f"golden prompts: {asked} asked of {newest.replica_id}")
    if newest.questions != questions:
        return Summary(Judgement.NOT_YET, "the golden prompts changed and are asked anew")
    if newest.phase == "failed":
        tries = sum(run.phase == "failed" and run.questions == questions for run in runs)
        text = f"the golden prompts could not be asked ({tries} of {TRIES} tries): {newest.reason_text}"
        return Summary(Judgement.NOT_YET, text)
    return judge(read_outcomes(newest), asked_of=len(newest.questions))


def read_outcomes(run: GoldenRun) -> tuple[Outcome, ...]:
    return tuple(Outcome(**one) for one in run.outcomes)


def _newest_outcomes(model: str) -> dict[str, tuple[Outcome, datetime | None]]:
    runs = GoldenRun.objects.filter(model__name=model, phase="done", rollout__isnull=False).order_by("-id")[
        :1
    ]
    return {one.name: (one, run.done_at) for run in runs for one in read_outcomes(run)}


def _prompt_row(row: GoldenPrompt, newest: Mapping[str, tuple[Outcome, datetime | None]]) -> GoldenPromptRow:
    outcome, at = newest.get(row.name, (None, None))
    return GoldenPromptRow(
        name=row.name,
        messages=tuple({"role": role, "content": content} for role, content in read_messages(row.messages)),
        max_tokens=row.max_tokens,
        match=row.match,
        expected=row.expected,
        tolerance=row.tolerance,
        required=row.required,
        hot=row.hot,
        expected_logprob=row.expected_logprob,
        recorded_from=row.recorded_from,
        recorded_at=row.recorded_at,
        created_by=row.created_by,
        created_at=row.created_at,
        newest=None if outcome is None else outcome.matches,
        newest_why="" if outcome is None else outcome.why,
        newest_at=at,
    )


def _run_row(row: GoldenRun) -> GoldenRunRow:
    outcomes = read_outcomes(row)
    summary = None
    if row.phase == "done" and row.rollout_id is not None:
        summary = judge(outcomes, asked_of=len(row.questions))
    return GoldenRunRow(
        id=row.pk,
        rollout=row.rollout_id,
        stage=row.stage,
        lane=row.lane,
        replica=row.replica_id,
        generation=row.generation,
        release=row.replica.release.number,
        phase=row.phase,
        asked_of=len(row.questions),
        judgement="" if summary is None else summary.judgement.value,
        text=row.reason_text if summary is None else summary.text,
        outcomes=tuple(
            GoldenOutcome(one.name, one.matches, one.why, one.text, one.required) for one in outcomes
        ),
        asked_at=row.asked_at,
        done_at=row.done_at,
    )
