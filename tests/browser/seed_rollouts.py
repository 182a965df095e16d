"""A rollout at its second step with gates read, one that was taken back, for a model of its own."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from pool.domain.gates import GATES
from pool.models import GateReading, GatewayInstance, GoldenRun, Rollout, RolloutEvent
from pool.telemetry.store import add_cells
from tests import factories
from tests.browser.seed_latency import make_cells

MODEL = "gray-model"
STEPS: list[dict[str, object]] = [
    {"weight": weight, "soak_s": 300, "min_requests": 200, "lanes": []} for weight in (5, 25, 50, 100)
]  # fmt: skip


def seed_rollouts(*, now: datetime | None = None) -> tuple[Rollout, Rollout]:
    """The one that runs, and the one that is being taken back."""
    now = now or timezone.now()
    running = _make(MODEL, now, phase="stepping", step=1, plan=3, weighted_at=now - timedelta(minutes=20))
    Rollout.objects.filter(pk=running.pk).update(
        verdict={
            "judgement": "not_yet",
            "text": "ttft: about 400 more requests, 4 minutes",
            "broken_limit": "",
            "gates": [_gate("errors", "not_worse", 0.1, 5.2), _gate("ttft", "not_yet", 1.2, 2.0)],
        },
        verdict_at=now,
    )
    _fill(running, now)
    taken = _make(
        "bad-model", now, phase="rolling_back", step=0, plan=4, rollback_plan=4,
        weighted_at=now - timedelta(minutes=5), table_epoch=1, table_version=10,
    )  # fmt: skip
    factories.make_plan(taken.model, number=4, weights={"1": 100}, rollback_of=1)
    for name, version, seen in (("gw-a", 10, now), ("gw-b", 9, now - timedelta(minutes=1))):
        GatewayInstance.objects.update_or_create(
            id=name,
            defaults={
                "epoch": 1, "version": version, "applied_at": now, "seen_at": seen, "via": "redis", "gone_at": None,
                "report": {"replicas": {}, "in_flight": 0},
            },
        )  # fmt: skip
    RolloutEvent.objects.create(
        rollout=taken,
        at=now,
        kind="guard",
        code="worse",
        text="Errors 4.1 % against 0.4 %. Plan 4 is in force.",
    )
    return running, taken


def _make(name: str, now: datetime, **values: object) -> Rollout:
    model = factories.make_model(name)
    profile = factories.make_profile(f"{name}-usual")
    stable = factories.make_release(model, number=1, profile=profile)
    candidate = factories.make_release(model, number=2, profile=profile)
    factories.make_release(model, number=3, profile=profile, replicas=0)
    factories.make_plan(model, number=1, in_force=False)
    factories.make_plan(model, number=3, weights={"1": 75, "2": 25})
    rollout = Rollout.objects.create(
        id=f"o{name.replace('-', '')}"[:16],
        model=model,
        candidate=candidate,
        stable=stable,
        base_plan=1,
        steps=STEPS,
        scales=[["", 1]],
        entered_at=now,
        created_at=now - timedelta(minutes=30),
        created_by="otto",
        next_action="soaking for another 200 s",
        reason_text="Step 2 of 4: 25 %.",
        reason_code="step",
        **values,
    )
    RolloutEvent.objects.create(
        rollout=rollout, at=now, kind="phase", code="step", text="stepping: Step 2 of 4: 25 %."
    )
    return rollout


def _fill(rollout: Rollout, now: datetime) -> None:
    """Readings of 20 minutes, traffic of the last minutes, and one run of golden prompts."""
    readings = []
    for place, gate in enumerate(GATES):
        for reading in range(120):
            way = (reading % 60) / 60
            readings.append(
                GateReading(
                    rollout=rollout,
                    gate=gate,
                    at=now - timedelta(seconds=10 * (119 - reading)),
                    outcome="not_yet",
                    worse_log=0.3 + 0.2 * place * (reading % 7) / 7,
                    not_worse_log=3.2 * way * (1 - 0.12 * place) - 0.1,
                )  # fmt: skip
            )
    GateReading.objects.bulk_create(readings)
    add_cells(make_cells(MODEL, now=now))
    node = factories.make_node("gray-node")
    replica = factories.make_replica(rollout.candidate, node=node, id="rgray0002")
    GoldenRun.objects.create(
        rollout=rollout, model=rollout.model, stage="before", replica=replica, generation=1, questions=[{}],
        phase="done", done_at=now - timedelta(minutes=21),
        outcomes=[{"name": "capital", "matches": True, "why": "", "text": "Paris", "required": True}],
    )  # fmt: skip


def _gate(name: str, outcome: str, worse: float, not_worse: float) -> dict[str, object]:
    return {
        "gate": name, "outcome": outcome, "worse_log": worse, "worse_bar": 4.8, "not_worse_log": not_worse,
        "not_worse_bar": 3.0, "dry_run": False, "broken_limit": "", "text": f"{name}: 812 samples of both",
        "figures": {},
    }  # fmt: skip
