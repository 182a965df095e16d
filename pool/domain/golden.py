"""Golden prompts: conversations whose answers are known, and what a candidate's answers to them say. Pure.

Engines that compute wrongly answer with 200 and quickly (FC-70), so that only the words show it. Patterns are matched
by the worker, in a process of its own with a time limit: here they only have to compile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pool.domain.rollout import Judgement

BEFORE = "before"
MATCHES = ("exact", "contains", "regex", "logprob")
ROLES = ("system", "user", "assistant")
MAX_MESSAGES = 64
MAX_PROMPT_CHARACTERS = 200_000
"""Of all messages together: some 50,000 tokens; what an engine does not hold it refuses."""
MAX_EXPECTED_CHARACTERS = 8_000
MAX_PATTERN_CHARACTERS = 500
MAX_TOKENS = 512
MAX_TOLERANCE = 10.0
PROMPTS_PER_MODEL = 50
"""As many as a warm-up may send."""
KEPT_TEXT_CHARACTERS = 1_000
TRIES = 3
"""So often a stage is asked where the asking itself failed; then it waits for a person."""
RETRY_AFTER = timedelta(seconds=10)
BUDGET_S = 300.0
"""For all questions to one replica."""
OPEN_FOR = timedelta(minutes=10)
"""After that nobody carries it out any more: the budget and waiting for a worker take less."""
OPEN = ("waiting", "running")


@dataclass(frozen=True, slots=True)
class Question:
    """`tolerance`: of `logprob`, nats per token. `reference`: mean log-probability per token of `expected` at the
    stable release; None where nobody has recorded it. `required` false: a difference is told and blocks nothing."""

    name: str
    messages: tuple[tuple[str, str], ...]
    max_tokens: int = 32
    match: str = "exact"
    expected: str = ""
    tolerance: float = 0.0
    required: bool = True
    reference: float | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What an engine gave. `mean_logprob`: of the expected text, None where it was not asked or not said. `matched`: of
    a pattern, None where matching it took too long. `refused`: why there is no answer, in words."""

    text: str = ""
    mean_logprob: float | None = None
    matched: bool | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`matches` None: it cannot be told, which never passes a required one."""

    name: str
    matches: bool | None
    why: str = ""
    text: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Summary:
    judgement: Judgement
    text: str
    asked: int = 0
    matched: int = 0
    differing: tuple[str, ...] = field(default=())


def stage_of(step: int, steps: int) -> str:
    """`before` the first weight, `step k` counted from 1, `full` once the candidate has everything."""
    if step < 0:
        return BEFORE
    return f"step {step + 1}" if step < steps else "full"


def check_question(question: Question) -> list[str]:
    """Each broken rule, in words for an operator."""
    problems = _check_messages(question.messages)
    if not 1 <= question.max_tokens <= MAX_TOKENS:
        problems.append(f"max_tokens must be 1 to {MAX_TOKENS}.")
    if question.match not in MATCHES:
        problems.append(f"match must be one of {', '.join(MATCHES)}.")
    if len(question.expected) > MAX_EXPECTED_CHARACTERS:
        problems.append(f"expected may have {MAX_EXPECTED_CHARACTERS} characters.")
    if not (math.isfinite(question.tolerance) and 0 <= question.tolerance <= MAX_TOLERANCE):
        problems.append(f"tolerance must be 0 to {MAX_TOLERANCE:g} nats per token.")
    if question.match == "logprob" and not question.tolerance:
        problems.append("logprob needs a tolerance above 0: no two engines compute alike to the last bit.")
    return problems + (_check_pattern(question.expected) if question.match == "regex" else [])


def _check_messages(messages: Sequence[tuple[str, str]]) -> list[str]:
    if not 1 <= len(messages) <= MAX_MESSAGES:
        return [f"messages must hold 1 to {MAX_MESSAGES} messages."]
    problems = []
    if any(role not in ROLES for role, _ in messages):
        problems.append(f"each role must be one of {', '.join(ROLES)}.")
    if any(not content.strip() for _, content in messages):
        problems.append("no message may be empty.")
    if messages[-1][0] != "user":
        problems.append("the last message must be the user's: the answer to it is compared.")
    if sum(len(content) for _, content in messages) > MAX_PROMPT_CHARACTERS:
        problems.append(f"all messages together may have {MAX_PROMPT_CHARACTERS} characters.")
    return problems


def _check_pattern(pattern: str) -> list[str]:
    if not pattern:
        return ["a pattern cannot be recorded: write it into expected."]
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return [f"a pattern may have {MAX_PATTERN_CHARACTERS} characters."]
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        return [f"the pattern is not a regular expression: {exc}."]
    return []


def read_messages(content: object) -> tuple[tuple[str, str], ...]:
    """From `[{role, content}]`. Raises ValueError for anything else; rules are check_question's."""
    if not isinstance(content, list):
        raise ValueError("messages must be a list of {role, content}.")
    found = []
    for one in content:
        extra = set(one) - {"role", "content"} if isinstance(one, dict) else {"?"}
        if extra or not isinstance(one.get("role"), str) or not isinstance(one.get("content"), str):
            raise ValueError("each message must be {role, content}, both texts.")
        found.append((one["role"], one["content"]))
    return tuple(found)


def question_to_json(question: Question) -> dict[str, Any]:
    return asdict(question) | {"messages": [list(one) for one in question.messages]}


def question_from_json(content: Mapping[str, Any]) -> Question:
    messages = tuple((str(role), str(text)) for role, text in content["messages"])
    return Question(**{**content, "messages": messages})


def shared_prefix(messages: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The system messages that it begins with: what other conversations are likely to begin with, too."""
    found = []
    for role, content in messages:
        if role != "system":
            break
        found.append((role, content))
    return tuple(found)


def compare(question: Question, given: Given) -> Outcome:
    """Leading and trailing white space never counts."""
    matches, why = _compare(question, given)
    text = given.text[:KEPT_TEXT_CHARACTERS]
    return Outcome(question.name, matches, why, text, question.required)


def _compare(question: Question, given: Given) -> tuple[bool | None, str]:
    if given.refused:
        return False, given.refused
    if question.match == "regex":
        if given.matched is None:
            return None, "The pattern took too long to match: write a simpler one."
        return given.matched, "" if given.matched else "The pattern is not found in the answer."
    if not question.expected.strip():
        return None, "No answer is recorded: record it from the stable release."
    if question.match == "logprob":
        return _compare_logprobs(question, given)
    expected, text = question.expected.strip(), given.text.strip()
    if question.match == "contains":
        return expected in text, "" if expected in text else "The answer does not contain the expected text."
    return text == expected, "" if text == expected else _where_they_part(expected, text)


def _compare_logprobs(question: Question, given: Given) -> tuple[bool | None, str]:
    if question.reference is None:
        return None, "No log-probability is recorded: record it from the stable release."
    if given.mean_logprob is None:
        return None, "The engine did not say log-probabilities of a prompt."
    apart = abs(given.mean_logprob - question.reference)
    words = f"{apart:.3f} nats per token apart, {question.tolerance:g} allowed."
    # Not `<=` alone: NaN must not pass.
    return (True, words) if apart <= question.tolerance else (False, words)


def _where_they_part(expected: str, text: str) -> str:
    if not text:
        return "The answer is empty."
    same = next(
        (at for at, (one, other) in enumerate(zip(expected, text, strict=False)) if one != other),
        min(len(expected), len(text)),
    )
    return f"The answer differs from character {same + 1} on."


def judge(outcomes: Sequence[Outcome], *, asked_of: int) -> Summary:
    """`asked_of`: how many there are. What differs, was refused or could not be told never passes if it is required."""
    required = [one for one in outcomes if one.required]
    differing = tuple(one.name for one in outcomes if one.matches is False)
    matched = sum(one.matches is True for one in outcomes)
    figures = f"{matched} of {asked_of} golden prompts match"
    broken = [one for one in required if one.matches is False]
    if broken:
        first = broken[0]
        text = f"{figures}; {', '.join(one.name for one in broken[:5])} differ. {first.name}: {first.why}"
        return Summary(Judgement.WORSE, text, len(outcomes), matched, differing)
    untold = next((one for one in required if one.matches is None), None)
    if untold is not None:
        text = f"{figures}; {untold.name}: {untold.why}"
        return Summary(Judgement.NOT_YET, text, len(outcomes), matched, differing)
    if len(outcomes) < asked_of:
        text = f"{figures}; {asked_of - len(outcomes)} could not be asked in time"
        return Summary(Judgement.NOT_YET, text, len(outcomes), matched, differing)
    told = f"; {', '.join(differing)} differ and are not required" if differing else ""
    return Summary(Judgement.NOT_WORSE, f"{figures}{told}", len(outcomes), matched, differing)


def combine(summaries: Sequence[Summary]) -> Summary:
    """Of several replicas: the worst. Nothing at all is not yet."""
    order = (Judgement.WORSE, Judgement.NOT_YET, Judgement.NOT_WORSE)
    if not summaries:
        return Summary(Judgement.NOT_YET, "the golden prompts are asked")
    return min(summaries, key=lambda one: order.index(one.judgement))


def find_loss(
    *, asked_at: datetime, generation: int, current_generation: int, is_ready: bool, now: datetime
) -> tuple[str, str] | None:
    """Code and words of why an open run will bring no result any more; None while it may."""
    if generation != current_generation or not is_ready:
        return "replica_left", "The replica started anew or left service before it had answered."
    if now - asked_at >= OPEN_FOR:
        return "overdue", "Its node's worker did not ask it in time. Look at the node."
    return None
