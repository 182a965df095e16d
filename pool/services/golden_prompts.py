"""Golden prompts of a model: made, changed, removed, and recorded from its stable release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from django.db import IntegrityError, transaction

from pool.domain.golden import (
    OPEN,
    PROMPTS_PER_MODEL,
    Question,
    check_question,
)
from pool.domain.names import check_name
from pool.models import GoldenPrompt, GoldenRun, Model, PlanInForce, Replica, Rollout
from pool.models.rollouts import FINAL_PHASES
from pool.queries.golden import to_question
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.golden import as_json, create_run, give_up_lost
from pool.services.plans import lock_model


class NoStableReplica(Conflict):
    code: ClassVar[str] = "no_stable_replica"


@dataclass(frozen=True)
class GoldenWish:
    name: str
    messages: tuple[tuple[str, str], ...]
    max_tokens: int = 32
    match: str = "exact"
    expected: str = ""
    tolerance: float = 0.0
    required: bool = True
    hot: bool = field(default=False)


def create_prompt(model_name: str, wish: GoldenWish, *, actor: Actor) -> GoldenPrompt:
    """Raises Invalid with each broken rule, Conflict for a name that is taken or too many, NotFound."""
    check_name("golden prompt", wish.name)
    _check(wish)
    with transaction.atomic():
        model = lock_model(model_name)
        if GoldenPrompt.objects.filter(model=model).count() >= PROMPTS_PER_MODEL:
            raise Conflict(f"A model has at most {PROMPTS_PER_MODEL} golden prompts. Remove one first.")
        if GoldenPrompt.objects.filter(model=model, name=wish.name).exists():
            raise Conflict(f"There is a golden prompt '{wish.name}' already.", name=wish.name)
        prompt = GoldenPrompt.objects.create(
            model=model,
            name=wish.name,
            messages=_messages(wish),
            max_tokens=wish.max_tokens,
            match=wish.match,
            expected=wish.expected,
            tolerance=wish.tolerance,
            required=wish.required,
            hot=wish.hot,
            created_by=actor.name,
        )
        record(actor, "golden.create", subject=f"model/{model_name}", prompt=wish.name, match=wish.match)
    return prompt


def change_prompt(model_name: str, wish: GoldenWish, *, actor: Actor) -> GoldenPrompt:
    """What was recorded is forgotten where the conversation or the expected text is another one."""
    _check(wish)
    with transaction.atomic():
        model = lock_model(model_name)
        prompt = GoldenPrompt.objects.select_for_update().filter(model=model, name=wish.name).first()
        if prompt is None:
            raise not_found("golden prompt", wish.name)
        if (prompt.messages, prompt.expected) != (_messages(wish), wish.expected):
            prompt.expected_logprob = prompt.recorded_from = prompt.recorded_at = None
        prompt.messages = _messages(wish)
        prompt.max_tokens = wish.max_tokens
        prompt.match = wish.match
        prompt.expected = wish.expected
        prompt.tolerance = wish.tolerance
        prompt.required = wish.required
        prompt.hot = wish.hot
        prompt.save()
        record(actor, "golden.change", subject=f"model/{model_name}", prompt=wish.name, match=wish.match)
    return prompt


def remove_prompt(model_name: str, name: str, *, actor: Actor) -> None:
    """Raises NotFound."""
    with transaction.atomic():
        model = lock_model(model_name)
        if not GoldenPrompt.objects.filter(model=model, name=name).delete()[0]:
            raise not_found("golden prompt", name)
        record(actor, "golden.remove", subject=f"model/{model_name}", prompt=name)


def record_answers(model_name: str, *, names: Sequence[str] = (), actor: Actor, now: datetime) -> GoldenRun:
    """Asks a ready replica of the stable release; its answers become the expected ones. `names` empty: of all that have
    none yet. Raises NoStableReplica, Conflict while one is open or where there is nothing to record, NotFound."""
    with transaction.atomic():
        model = lock_model(model_name)
        questions = _to_record(model, names)
        if not questions:
            raise Conflict("Every golden prompt has its answer. Name those that are to be recorded again.")
        replica = _find_stable_replica(model)
        if replica is None:
            raise NoStableReplica(
                f"No replica of the stable release of '{model_name}' is ready to answer. Start one first."
            )
        opened = GoldenRun.objects.filter(model=model, rollout=None, phase__in=OPEN)
        give_up_lost(list(opened.select_related("replica")), now)
        try:
            with transaction.atomic():
                run = create_run(
                    replica,
                    as_json(questions),
                    model_id=model.pk,
                    stage="record",
                    now=now,
                    asked_by=actor.name,
                )
        except IntegrityError as exc:
            raise Conflict("Answers are being recorded already. The result comes by itself.") from exc
        record(actor, "golden.ask", subject=f"model/{model_name}", prompts=[one.name for one in questions])
    return run


def _to_record(model: Model, names: Sequence[str]) -> list[Question]:
    """Patterns are written by people; they cannot be recorded."""
    prompts = list(GoldenPrompt.objects.filter(model=model).exclude(match="regex").order_by("name"))
    if names:
        found = [prompt for prompt in prompts if prompt.name in names]
        missing = set(names) - {prompt.name for prompt in found}
        if missing:
            raise not_found("golden prompt that can be recorded", ", ".join(sorted(missing)))
        return [to_question(prompt) for prompt in found]
    return [to_question(prompt) for prompt in prompts if _lacks_answer(prompt)]


def _lacks_answer(prompt: GoldenPrompt) -> bool:
    return not prompt.expected.strip() or (prompt.match == "logprob" and prompt.expected_logprob is None)


def _find_stable_replica(model: Model) -> Replica | None:
    """Of the stable release of the active rollout, else of the one with the most weight."""
    ready = Replica.objects.filter(release__model=model, phase="ready", node__isnull=False).order_by("pk")
    active = Rollout.objects.filter(model=model).exclude(phase__in=FINAL_PHASES).first()
    if active is not None:
        return ready.filter(release_id=active.stable_id).first()
    in_force = PlanInForce.objects.filter(model=model).select_related("plan").first()
    if in_force is None:
        return None
    weights = in_force.plan.weights
    return ready.filter(release__number=max(weights, key=lambda number: weights[number])).first()


def _messages(wish: GoldenWish) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in wish.messages]


def _check(wish: GoldenWish) -> None:
    question = Question(
        name=wish.name,
        messages=wish.messages,
        max_tokens=wish.max_tokens,
        match=wish.match,
        expected=wish.expected,
        tolerance=wish.tolerance,
        required=wish.required,
    )
    problems = check_question(question)
    if problems:
        raise Invalid(f"The golden prompt is refused: {' '.join(problems)}", problems=problems)
