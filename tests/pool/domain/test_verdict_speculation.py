"""FC-71: speculative decoding that slows tokens down after an upgrade, while first tokens come as before."""

from __future__ import annotations

import random

from pool.domain.gates import read_gates
from pool.domain.rollout import Judgement
from pool.domain.strata import Sample
from pool.domain.verdict import Verdict


def make_sample(draw: random.Random) -> Sample:
    """The candidate's gaps between tokens are 40 % longer at the same load."""
    mine = draw.random() < 0.5
    factor = 1.4 if mine else 1.0
    return Sample(
        candidate=mine,
        lane="short",
        session=draw.randrange(10**9),
        cached_ratio=0.0,
        output_tokens=draw.randrange(20, 200),
        ttft_s=0.2 * draw.lognormvariate(0, 0.3),
        itl_s=0.03 * factor * draw.lognormvariate(0, 0.2),
        per_token_s=0.04 * factor * draw.lognormvariate(0, 0.2),
    )


def test_fc71_a_candidate_with_slower_tokens_fails_its_gate() -> None:
    draw = random.Random(71)
    verdict = Verdict(read_gates({}), ("short",))

    for number in range(90):
        verdict.add_block(number, [make_sample(draw) for _ in range(50)])
    reading = verdict.read()

    assert reading.judgement is Judgement.WORSE
    outcomes = {gate.gate: gate.outcome for gate in reading.gates}
    assert outcomes["itl"] is Judgement.WORSE
    assert outcomes["ttft"] is not Judgement.WORSE
