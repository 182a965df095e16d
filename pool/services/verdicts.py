"""Reads a rollout's gates on: new blocks of requests in, evidence and readings stored. Nothing is decided here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from pool.domain.gates import read_gates
from pool.domain.verdict import Reading, Verdict
from pool.models import GateReading, Rollout
from pool.queries.rollout_units import (
    Span,
    block_of,
    find_read_at,
    list_lane_names,
    load_counters,
    load_samples,
)

log = logging.getLogger(__name__)

LAG: Final = timedelta(seconds=5)
"""Behind telemetry's own mark: gateways report each second or so, and not all at once."""
MOST_BLOCKS: Final = 12
"""Per call: what was missed is caught up on in some seconds, and no call is long."""


@dataclass
class _Running:
    """`Rollout.evidence`. `counters`: of each gateway process, as it was read last."""

    verdict: Verdict
    last_block: int
    seen: dict[str, int] = field(default_factory=dict)
    counters: dict[str, list[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.to_json(),
            "last_block": self.last_block,
            "seen": self.seen,
            "counters": self.counters,
        }


def judge(rollout: Rollout, now: datetime) -> Reading:
    """What the gates say now. Reads what has ended since the last call and stores `evidence`, `verdict`, `verdict_at`
    of the row and one reading per gate and block. Idempotent: a second call within a block changes nothing. Without
    telemetry it stands still, except for the fixed limit of errors, which the gateways' beats feed."""
    running = _begin_or_go_on(rollout, now)
    counted = _add_counters(running, rollout)
    judged = _add_blocks(running, rollout, now)
    reading = running.verdict.read()
    if counted or judged or rollout.verdict_at is None:
        _store(rollout, running, reading, now, is_new=judged or rollout.verdict_at is None)
    return reading


def _begin_or_go_on(rollout: Rollout, now: datetime) -> _Running:
    written: Mapping[str, Any] = rollout.evidence
    if written:
        try:
            return _Running(
                Verdict.from_json(written["verdict"]),
                int(written["last_block"]),
                dict(written["seen"]),
                dict(written["counters"]),
            )
        except (KeyError, TypeError, ValueError):
            log.exception("A rollout's evidence is unreadable and begins anew", extra={"rollout": rollout.pk})
    verdict = Verdict(read_gates(rollout.gates), list_lane_names(rollout))
    begun = rollout.weighted_at if not written and rollout.weighted_at is not None else now
    # What a process counted for an earlier rollout of the same candidate is none of this one's.
    counters = {name: list(counts) for name, counts in load_counters(rollout).items()}
    return _Running(verdict, block_of(begun), counters=counters)


def _add_blocks(running: _Running, rollout: Rollout, now: datetime) -> bool:
    """Those that are complete; the block in which the candidate first got weight is none."""
    read_at = find_read_at()
    if rollout.weighted_at is None or read_at is None:
        return False
    newest = block_of(min(now, read_at) - LAG) - 1
    span = Span(running.last_block + 1, min(newest, running.last_block + MOST_BLOCKS))
    if span.last < span.first:
        return False
    samples = load_samples(rollout, span, running.seen)
    for block in range(span.first, span.last + 1):
        running.verdict.add_block(block, samples.get(block, ()), step=rollout.step)
    running.last_block = span.last
    return True


def _add_counters(running: _Running, rollout: Rollout) -> bool:
    """A process that is new counts from 0, and so does one whose counts went back."""
    changed = False
    errors = requests = 0
    for gateway, counts in load_counters(rollout).items():
        before = running.counters.get(gateway, [0, 0])
        if counts[0] < before[0] or counts[1] < before[1]:
            before = [0, 0]
        errors += counts[0] - before[0]
        requests += counts[1] - before[1]
        changed = changed or list(counts) != running.counters.get(gateway)
        running.counters[gateway] = list(counts)
    if requests or errors:
        running.verdict.add_counts(errors, max(requests, errors))
    return changed


def _store(rollout: Rollout, running: _Running, reading: Reading, now: datetime, *, is_new: bool) -> None:
    """`verdict_at` is when requests were read last: counters of the gateways do not make an old comparison new."""
    rollout.evidence, rollout.verdict = running.to_json(), reading.as_json()
    if is_new:
        rollout.verdict_at = now
    readings = [
        GateReading(
            rollout=rollout,
            gate=gate.gate,
            at=now,
            outcome=gate.outcome.value,
            worse_log=gate.worse_log,
            not_worse_log=gate.not_worse_log,
            figures={**gate.figures, "worse_bar": gate.worse_bar, "not_worse_bar": gate.not_worse_bar},
        )
        for gate in reading.gates
    ]
    with transaction.atomic():
        rollout.save(update_fields=["evidence", "verdict", "verdict_at"])
        if _is_due(rollout, reading, now):
            GateReading.objects.bulk_create(readings)


def _is_due(rollout: Rollout, reading: Reading, now: datetime) -> bool:
    """At most one in ten seconds, and at each change of an outcome."""
    last = list(rollout.readings.order_by("-id").values_list("gate", "outcome", "at")[: len(reading.gates)])
    if not last or now - last[0][2] >= timedelta(seconds=10):
        return True
    return {gate: outcome for gate, outcome, _ in last} != {
        gate.gate: gate.outcome.value for gate in reading.gates
    }
