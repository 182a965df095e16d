from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pool.domain.gates import GATES, read_gates
from pool.domain.rollout import Judgement
from pool.domain.strata import Sample
from pool.domain.verdict import Reading, Verdict

LANES = ("short", "long")


def make_samples(
    draw: random.Random, *, size: int = 60, slow: float = 1.0, wrong: float = 0.0, longer: float = 1.0
) -> list[Sample]:
    samples = []
    for _ in range(size):
        mine = draw.random() < 0.5
        factor = slow if mine else 1.0
        tokens = int(draw.uniform(20, 200) * (longer if mine else 1.0))
        samples.append(
            Sample(
                candidate=mine,
                lane=draw.choice(LANES),
                session=draw.randrange(10**9),
                cached_ratio=0.0,
                output_tokens=tokens,
                error=mine and draw.random() < wrong,
                ttft_s=0.2 * factor * draw.lognormvariate(0, 0.3),
                itl_s=0.03 * factor * draw.lognormvariate(0, 0.2),
                per_token_s=0.04 * factor * draw.lognormvariate(0, 0.2),
            )
        )
    return samples


def run(blocks: Sequence[Sequence[Sample]], gates: dict[str, object] | None = None) -> Reading:
    verdict = Verdict(read_gates(gates or {}), LANES)
    for number, samples in enumerate(blocks):
        verdict.add_block(number, samples)
    return verdict.read()


def outcome_of(reading: Reading, gate: str) -> Judgement:
    return next(one.outcome for one in reading.gates if one.gate == gate)


def test_no_requests_are_not_yet_for_ever_fc11() -> None:
    reading = run([[]] * 5000)

    assert reading.judgement is Judgement.NOT_YET
    assert {gate.outcome for gate in reading.gates} == {Judgement.NOT_YET}
    assert reading.broken_limit == ""
    assert reading.text == (
        "errors, interrupted, ttft, itl, per_token, shape: no requests of both releases to compare yet "
        "(a new replica's first minute is not judged)"
    )
    assert reading.gates[0].figures["candidate"] == {"samples": 0, "ratio": None, "p50_s": None}


def test_requests_of_one_release_alone_are_not_yet_fc11() -> None:
    draw = random.Random(1)
    mine = [
        Sample(candidate=True, lane="short", session=draw.randrange(10**9), ttft_s=0.1) for _ in range(40)
    ]

    assert run([mine] * 60).judgement is Judgement.NOT_YET


def test_an_alike_candidate_is_not_worse() -> None:
    draw = random.Random(2)

    reading = run([make_samples(draw) for _ in range(120)])

    assert reading.judgement is Judgement.NOT_WORSE
    assert all(gate.figures["more_requests"] == 0 for gate in reading.gates)


def test_slower_tokens_are_worse_while_the_first_token_is_not_fc71() -> None:
    draw = random.Random(3)
    blocks = [
        [replace(one, itl_s=(one.itl_s or 0) * (1.4 if one.candidate else 1.0)) for one in make_samples(draw)]
        for _ in range(60)
    ]

    reading = run(blocks)

    assert reading.judgement is Judgement.WORSE
    assert outcome_of(reading, "itl") is Judgement.WORSE
    assert outcome_of(reading, "ttft") is not Judgement.WORSE
    assert reading.text == "itl: worse than stable"


def test_errors_and_long_answers_are_worse_at_their_gates_fc70() -> None:
    draw = random.Random(4)

    wrong = run([make_samples(draw, wrong=0.1) for _ in range(40)])
    longer = run([make_samples(draw, longer=3.0) for _ in range(40)])

    assert outcome_of(wrong, "errors") is Judgement.WORSE
    assert outcome_of(longer, "shape") is Judgement.WORSE


def test_a_dry_gate_reports_and_does_not_act() -> None:
    draw = random.Random(5)
    dry: dict[str, object] = {"ttft": {"dry_run": True}}
    blocks = [
        [Sample(True, "short", draw.randrange(10**9), ttft_s=2.0) for _ in range(20)]
        + [Sample(False, "short", draw.randrange(10**9), ttft_s=1.0) for _ in range(20)]
        for _ in range(20)
    ]

    reading = run(blocks, dry)

    assert outcome_of(reading, "ttft") is Judgement.WORSE
    assert reading.judgement is Judgement.NOT_YET


def test_a_fixed_limit_is_broken_without_stable() -> None:
    draw = random.Random(6)
    failed = [Sample(True, "short", draw.randrange(10**9), error=True) for _ in range(8)]

    reading = run([failed])

    assert reading.judgement is Judgement.NOT_YET
    assert reading.broken_limit == "errors: 8 of 8 of the candidate's requests, the limit is 5.0%"


def test_a_limit_of_seconds_is_on_its_p95() -> None:
    draw = random.Random(7)
    limit: dict[str, object] = {"ttft": {"limit_s": 1.0}}
    some = [
        [
            Sample(True, "short", draw.randrange(10**9), ttft_s=2.0 if place == 0 else 0.5)
            for place in range(40)
        ]
        for _ in range(40)
    ]
    many = [[Sample(True, "short", draw.randrange(10**9), ttft_s=2.0) for _ in range(10)]] * 2

    assert run(some, limit).broken_limit == ""
    assert "took over 1 s" in run(many, limit).broken_limit


def test_counters_of_gateways_break_the_limit_without_any_record() -> None:
    verdict = Verdict(read_gates({}), LANES)

    verdict.add_counts(0, 100)
    assert verdict.read().broken_limit == ""
    verdict.add_counts(30, 30)

    assert "errors: 30 of 130" in verdict.read().broken_limit


def test_cold_requests_are_shown_and_not_judged() -> None:
    draw = random.Random(8)
    cold = [Sample(True, "short", draw.randrange(10**9), ttft_s=9.0, cold=True) for _ in range(30)]

    reading = run([make_samples(draw, size=10) + cold for _ in range(20)])
    ttft = next(gate for gate in reading.gates if gate.gate == "ttft")

    assert ttft.outcome is not Judgement.WORSE
    assert ttft.figures["candidate_cold"]["samples"] == 600
    assert ttft.figures["candidate_cold"]["p50_s"] == pytest.approx(9.0, rel=0.02)


def test_a_new_step_asks_again_and_keeps_what_is_known_of_worse() -> None:
    draw = random.Random(9)
    verdict = Verdict(read_gates({}), LANES)
    for number in range(120):
        verdict.add_block(number, make_samples(draw))
    assert verdict.read().judgement is Judgement.NOT_WORSE

    verdict.add_block(120, make_samples(draw), step=1)

    assert verdict.read().judgement is Judgement.NOT_YET


def test_not_yet_tells_about_how_much_more() -> None:
    draw = random.Random(10)

    ttft = next(gate for gate in run([make_samples(draw) for _ in range(12)]).gates if gate.gate == "errors")

    assert ttft.outcome is Judgement.NOT_YET
    assert ttft.figures["more_requests"] > 0
    assert ttft.figures["more_minutes"] > 0
    assert "more requests" in ttft.text


def test_a_wait_of_seconds_is_not_told_as_0_minutes() -> None:
    draw = random.Random(10)
    verdict = Verdict(read_gates({"errors": {"margin_points": 0.05}}), LANES)
    number = 0
    while True:
        verdict.add_block(number, make_samples(draw))
        errors = next(gate for gate in verdict.read().gates if gate.gate == "errors")
        if errors.outcome is not Judgement.NOT_YET:
            break
        number += 1
        said = errors.text

    assert number
    assert "(under a minute)" in said


def test_stored_evidence_goes_on_where_it_was() -> None:
    draw = random.Random(11)
    blocks = [make_samples(draw, slow=1.15) for _ in range(30)]
    whole, cut = Verdict(read_gates({}), LANES), Verdict(read_gates({}), LANES)

    for number, samples in enumerate(blocks):
        whole.add_block(number, samples)
        cut.add_block(number, samples)
        cut = Verdict.from_json(json.loads(json.dumps(cut.to_json())))

    assert cut.read().as_json() == whole.read().as_json()


def test_evidence_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="another format"):
        Verdict.from_json({"format": 0})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"speed": {}}, "speed: there is no such gate"),
        ({"ttft": 3}, "ttft: an object is wanted"),
        ({"ttft": {"margin_ratio": True}}, "ttft.margin_ratio: a number is wanted"),
        ({"ttft": {"margin_ratio": -1}}, "a number from 0 to 10 is wanted"),
        ({"ttft": {"limit_ratio": 0.1}}, "ttft.limit_ratio: there is no such setting"),
        ({"errors": {"limit_s": 1}}, "errors.limit_s: there is no such setting"),
        ({"shape": {"dry_run": 1}}, "shape.dry_run: true or false is wanted"),
        ({"errors": {"margin_ratio": float("nan")}}, "a number from 0 to 10 is wanted"),
    ],
)
def test_broken_settings_are_named(written: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_gates(written)


def test_each_broken_rule_is_told_and_written_settings_are_read_again() -> None:
    with pytest.raises(ValueError, match="(?s)speed.*itl"):
        read_gates({"speed": {}, "itl": {"margin_points": 0.1}})

    kept = read_gates({"errors": {"limit_ratio": None, "margin_points": 0.05}, "ttft": {"limit_s": 2}})
    assert read_gates(kept.as_json()).by_gate["ttft"].limit_s == 2.0
    assert kept.by_gate["errors"].limit_ratio is None
    assert tuple(kept.by_gate) == GATES
