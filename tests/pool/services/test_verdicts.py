from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.domain.rollout import Judgement
from pool.models import GateReading, RequestRecord, Rollout, StreamPosition
from pool.queries.rollout_units import Span, block_of, load_samples, read_sample
from pool.services.verdicts import judge
from pool.telemetry.partitions import ensure_partition
from tests.factories import T0, make_gateway, make_model, make_node, make_plan, make_release, make_replica

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def make_rollout(**values: Any) -> Rollout:
    model = make_model()
    stable, candidate = make_release(model, number=1), make_release(model, number=2)
    node = make_node()
    for release in (stable, candidate):
        make_replica(release, node=node, id=f"r{release.number}", ready_at=T0 - timedelta(hours=1))
    make_plan(model, pins={"beta": 2})
    fields = {"phase": "stepping", "step": 0, "base_plan": 1, "weighted_at": T0, "steps": []}
    return Rollout.objects.create(
        id="ro1", model=model, candidate=candidate, stable=stable, **(fields | values)
    )


def make_record(at: datetime, wished: int, number: int, **values: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "request_id": f"q{number}", "model": "smollm2", "lane": "short", "wished_release": wished,
        "release": wished, "replica": f"r{wished}", "status": 200, "outcome": "ok", "attempts": 1, "stream": True,
        "ttft_s": 0.2, "e2e_s": 1.0, "decode_s": 0.8, "prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 20,
        "session": number,
    }  # fmt: skip
    return RequestRecord(at=at, **(fields | values))


def store(records: list[RequestRecord], *, read_at: datetime) -> None:
    for at in {record.at.replace(minute=0, second=0, microsecond=0) for record in records}:
        ensure_partition("pool_requestrecord", at)
    RequestRecord.objects.bulk_create(records)
    StreamPosition.objects.update_or_create(
        pk="sluice:facts", defaults={"last_id": "1-0", "updated_at": read_at}
    )


def make_traffic(draw: random.Random, seconds: int, *, slow: float = 1.0) -> list[RequestRecord]:
    records = []
    for number in range(seconds * 6):
        release = draw.choice((1, 2))
        ttft = 0.2 * draw.lognormvariate(0, 0.3) * (slow if release == 2 else 1.0)
        records.append(make_record(T0 + SECOND * (number / 6), release, number, ttft_s=ttft))
    return records


def judge_all(rollout: Rollout, until: datetime) -> Any:
    reading = None
    for _ in range(20):
        rollout.refresh_from_db()
        reading = judge(rollout, until)
    return reading


def test_a_slow_candidate_is_found_from_the_records() -> None:
    rollout, end = make_rollout(), T0 + SECOND * 600
    store(make_traffic(random.Random(1), 600, slow=1.6), read_at=end)

    reading = judge_all(rollout, end)

    assert reading.judgement is Judgement.WORSE
    assert "ttft: worse than stable" in reading.text
    rollout.refresh_from_db()
    assert rollout.verdict["judgement"] == "worse"
    assert rollout.verdict_at == end
    assert set(GateReading.objects.values_list("gate", flat=True)) == {
        "errors", "interrupted", "ttft", "itl", "per_token", "shape"
    }  # fmt: skip


def test_without_records_nothing_is_said_and_nothing_moves_fc11() -> None:
    rollout = make_rollout()

    reading = judge_all(rollout, T0 + timedelta(hours=5))

    assert reading.judgement is Judgement.NOT_YET
    assert reading.broken_limit == ""


def test_blocks_wait_for_telemetry_that_lags() -> None:
    rollout = make_rollout()
    store(make_traffic(random.Random(2), 120), read_at=T0 + SECOND * 30)

    judge(rollout, T0 + SECOND * 120)

    assert rollout.evidence["last_block"] == block_of(T0) + 1


def test_a_second_look_in_the_same_block_changes_nothing() -> None:
    rollout, end = make_rollout(), T0 + SECOND * 100
    store(make_traffic(random.Random(3), 100), read_at=end)
    first = judge(rollout, end)
    evidence, readings = rollout.evidence, GateReading.objects.count()

    second = judge(rollout, end + SECOND)

    assert second.as_json() == first.as_json()
    assert rollout.evidence == evidence
    assert GateReading.objects.count() == readings == 6


def test_counters_of_the_beats_break_the_limit_without_redis() -> None:
    rollout = make_rollout()
    gateway = make_gateway("gw-1", seen_at=T0, via="postgres")
    gateway.report = {"releases": {"smollm2": {"2": {"requests": 500, "errors": 90, "spilled_errors": 0}}}}
    gateway.save()
    assert judge(rollout, T0).broken_limit == ""

    gateway.report = {"releases": {"smollm2": {"2": {"requests": 530, "errors": 110, "spilled_errors": 5}}}}
    gateway.save()

    assert "errors: 25 of 30" in judge(rollout, T0 + SECOND).broken_limit


def test_unreadable_evidence_begins_anew() -> None:
    rollout = make_rollout(evidence={"verdict": {"format": 0}})

    assert judge(rollout, T0 + SECOND).judgement is Judgement.NOT_YET
    assert rollout.evidence["last_block"] == block_of(T0 + SECOND)


def test_the_first_requests_of_a_new_replica_are_cold() -> None:
    rollout = make_rollout()
    rollout.candidate.replicas.update(ready_at=T0)
    store([make_record(T0 + SECOND * second, 2, second) for second in range(20, 110)], read_at=T0)
    seen: dict[str, int] = {}

    blocks = load_samples(rollout, Span(block_of(T0), block_of(T0) + 11), seen)
    cold = [sample.cold for block in sorted(blocks) for sample in blocks[block]]

    assert cold == [True] * 40 + [False] * 50
    assert seen == {"r2": 20}


def test_a_request_is_in_the_block_in_which_it_ended_and_pinned_ones_in_none() -> None:
    rollout = make_rollout()
    records = [
        make_record(T0 - SECOND * 200, 1, 1, e2e_s=205.0),
        make_record(T0 + SECOND, 2, 2, e2e_s=30.0),
        make_record(T0 + SECOND, 2, 3, label="beta"),
        make_record(T0 + SECOND, 3, 4),
    ]
    store(records, read_at=T0)

    blocks = load_samples(rollout, Span(block_of(T0), block_of(T0)), {})

    assert [sample.session for sample in blocks[block_of(T0)]] == [1]


@pytest.mark.parametrize(
    ("values", "error", "interrupted", "sent"),
    [
        ({}, False, False, True),
        ({"status": 503}, True, False, True),
        ({"spilled": True, "release": 1, "replica": "r1"}, True, False, False),
        ({"attempts": 2}, True, False, True),
        ({"outcome": "interrupted", "status": 200}, False, True, True),
        ({"outcome": "client_gone", "status": 499}, False, False, True),
        ({"status": 400}, False, False, True),
    ],
)
def test_a_request_counts_against_the_release_it_was_drawn_for_fc45(
    values: dict[str, Any], error: bool, interrupted: bool, sent: bool
) -> None:
    row = vars(make_record(T0, 2, 1, **values))

    sample = read_sample(row, candidate=True, cold=False)

    assert (sample.error, sample.interrupted, sample.sent) == (error, interrupted, sent)


def test_what_did_not_end_well_has_no_times_of_an_answer() -> None:
    whole = read_sample(vars(make_record(T0, 2, 1)), candidate=True, cold=False)
    gone = read_sample(vars(make_record(T0, 2, 1, outcome="client_gone")), candidate=True, cold=False)

    assert whole.per_token_s == pytest.approx(0.05)
    assert whole.itl_s == pytest.approx(0.8 / 19)
    assert (gone.per_token_s, gone.itl_s, gone.output_tokens) == (None, None, None)
    assert gone.ttft_s == pytest.approx(0.2)
