from __future__ import annotations

import math
from datetime import timedelta

import pytest
from django.utils import timezone

from pool.models import GateReading, Rollout, RolloutEvent
from pool.queries.rollout_evidence import MOST_POINTS, count_step_requests, load_evidence, load_measured
from pool.queries.rollout_rows import rollout_row
from tests import factories
from tests.browser.seed_rollouts import MODEL, seed_rollouts

pytestmark = pytest.mark.django_db
T0 = factories.T0


@pytest.fixture
def rollout() -> Rollout:
    model = factories.make_model()
    stable, candidate = (factories.make_release(model, number=number) for number in (1, 2))
    return Rollout.objects.create(
        id="o1", model=model, candidate=candidate, stable=stable, base_plan=1, steps=[], phase="stepping",
        created_at=T0, weighted_at=T0, gates={"shape": {"dry_run": True}},
    )  # fmt: skip


def read(rollout: Rollout, gate: str, after_s: float, **values: float) -> None:
    GateReading.objects.create(
        rollout=rollout, gate=gate, at=T0 + timedelta(seconds=after_s), outcome="not_yet", **values
    )


def test_evidence_is_told_as_a_part_of_the_way_to_its_bar(rollout: Rollout) -> None:
    read(rollout, "errors", 5, worse_log=math.log(5 / 0.05), not_worse_log=math.log(20) / 2)
    read(rollout, "shape", 5, worse_log=-1.0)

    found = load_evidence(rollout, now=T0 + timedelta(minutes=1))

    errors, shape = found.gates
    assert (errors.gate, errors.worse, errors.not_worse) == ("errors", (1.0,), (0.5,))
    assert (shape.dry_run, shape.worse[0] < 0) == (True, True)
    assert (found.start, found.end) == (T0, T0 + timedelta(minutes=1))


def test_long_evidence_is_thinned_to_the_newest_of_each_stretch(rollout: Rollout) -> None:
    GateReading.objects.bulk_create(
        GateReading(
            rollout=rollout,
            gate="ttft",
            at=T0 + timedelta(seconds=10 * step),
            outcome="not_yet",
            worse_log=step,
        )
        for step in range(1000)
    )

    (line,) = load_evidence(rollout, now=T0 + timedelta(seconds=10_000)).gates

    assert len(line.at) <= MOST_POINTS + 1
    assert line.at[-1] == T0 + timedelta(seconds=9990)
    assert list(line.worse) == sorted(line.worse)


def test_steps_and_the_guard_mark_the_time(rollout: Rollout) -> None:
    RolloutEvent.objects.create(rollout=rollout, at=T0, kind="phase", text="Step 1 of 2: 5 %.")
    RolloutEvent.objects.create(rollout=rollout, at=T0, kind="operator", text="Paused.")

    marks = load_evidence(rollout, now=T0 + timedelta(minutes=1)).marks

    assert [mark.text for mark in marks] == ["Step 1 of 2: 5 %."]


def test_measured_shares_and_progress_count_what_really_ended() -> None:
    now = timezone.now()
    running, _ = seed_rollouts(now=now)
    Rollout.objects.filter(pk=running.pk).update(entered_at=now - timedelta(minutes=3))
    running.refresh_from_db()

    measured = load_measured(MODEL, now=now)
    counted = count_step_requests(rollout_row(running), now=now)

    assert set(measured.by_release) == {1, 2}
    assert measured.total == sum(measured.by_release.values()) > 0
    assert set(counted) <= {"short", "mid", "long"}
    assert sum(counted.values()) > measured.by_release[2]


def test_without_traffic_nothing_is_known_of_shares(rollout: Rollout) -> None:
    assert load_measured("smollm2", now=T0).total == 0
    assert count_step_requests(rollout_row(rollout), now=T0) == {}
