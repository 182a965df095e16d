"""What an answer to a golden prompt says of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pool.domain.golden import (
    Given,
    Outcome,
    Question,
    check_question,
    combine,
    compare,
    judge,
    question_from_json,
    question_to_json,
    read_messages,
    shared_prefix,
    stage_of,
)
from pool.domain.rollout import Judgement

ASKED = Question("capital", (("user", "Capital of France?"),), expected="Paris")
LOGPROB = replace(ASKED, match="logprob", tolerance=0.2, reference=-0.3)


@pytest.mark.parametrize(
    ("question", "given", "matches"),
    [
        (ASKED, Given(" Paris\n"), True),
        (ASKED, Given("Paris."), False),
        (ASKED, Given(""), False),
        (replace(ASKED, expected=""), Given("Paris"), None),
        (replace(ASKED, match="contains"), Given("It is Paris, of course."), True),
        (replace(ASKED, match="contains"), Given("It is zq zq"), False),
        (replace(ASKED, match="regex"), Given("Paris", matched=True), True),
        (replace(ASKED, match="regex"), Given("Lyon", matched=False), False),
        (replace(ASKED, match="regex"), Given("Lyon", matched=None), None),
        (LOGPROB, Given("Lyon", mean_logprob=-0.45), True),
        (LOGPROB, Given("Paris", mean_logprob=-0.51), False),
        (LOGPROB, Given("Paris", mean_logprob=float("nan")), False),
        (LOGPROB, Given("Paris"), None),
        (replace(LOGPROB, reference=None), Given("Paris", mean_logprob=-0.3), None),
        (ASKED, Given("Paris", refused="The engine answered 500."), False),
    ],
)
def test_an_answer_matches_or_not_or_cannot_be_told(
    question: Question, given: Given, matches: bool | None
) -> None:
    outcome = compare(question, given)

    assert outcome.matches is matches
    assert matches is True or outcome.why


@pytest.mark.parametrize(
    ("outcomes", "asked_of", "judgement"),
    [
        ([Outcome("a", True), Outcome("b", True)], 2, Judgement.NOT_WORSE),
        ([Outcome("a", True), Outcome("b", False, "differs")], 2, Judgement.WORSE),
        ([Outcome("a", True), Outcome("b", False, required=False)], 2, Judgement.NOT_WORSE),
        ([Outcome("a", True), Outcome("b", None, "unknown")], 2, Judgement.NOT_YET),
        ([Outcome("a", None), Outcome("b", False)], 2, Judgement.WORSE),
        ([Outcome("a", True)], 2, Judgement.NOT_YET),
        ([], 1, Judgement.NOT_YET),
    ],
)
def test_required_ones_decide_and_what_is_not_known_never_passes(
    outcomes: list[Outcome], asked_of: int, judgement: Judgement
) -> None:
    assert judge(outcomes, asked_of=asked_of).judgement is judgement


def test_the_worst_replica_speaks_for_all() -> None:
    good, bad = judge([Outcome("a", True)], asked_of=1), judge([Outcome("a", False)], asked_of=1)

    assert combine([good, bad]).judgement is Judgement.WORSE
    assert combine([]).judgement is Judgement.NOT_YET


@pytest.mark.parametrize(
    "change",
    [
        {"messages": ()},
        {"messages": (("user", " "),)},
        {"messages": (("tool", "x"),)},
        {"messages": (("user", "a"), ("assistant", "b"))},
        {"messages": (("user", "x" * 200_001),)},
        {"max_tokens": 0},
        {"max_tokens": 513},
        {"match": "like"},
        {"match": "regex", "expected": "("},
        {"match": "regex", "expected": ""},
        {"match": "regex", "expected": "a" * 501},
        {"match": "logprob", "tolerance": 0.0},
        {"tolerance": -1.0},
        {"tolerance": float("nan")},
        {"expected": "x" * 8_001},
    ],
)
def test_each_broken_rule_is_told(change: dict[str, Any]) -> None:
    assert check_question(ASKED) == []
    assert check_question(replace(ASKED, **change))


@pytest.mark.parametrize("content", [None, {}, ["x"], [{"role": "user"}], [{"role": "user", "content": 1}],
                                     [{"role": "user", "content": "a", "name": "b"}]])  # fmt: skip
def test_messages_of_another_shape_are_refused(content: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        read_messages(content)


def test_questions_survive_storing() -> None:
    assert question_from_json(question_to_json(LOGPROB)) == LOGPROB


def test_stages_are_named_by_the_step() -> None:
    assert [stage_of(step, 2) for step in (-1, 0, 1, 2)] == ["before", "step 1", "step 2", "full"]


def test_the_shared_prefix_is_the_system_prompt() -> None:
    assert shared_prefix((("system", "Be short."), ("user", "Hi"))) == (("system", "Be short."),)
    assert shared_prefix((("user", "Hi"),)) == ()
