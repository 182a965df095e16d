"""A rollout gives its candidate no weight that its ready replicas do not carry, and waits instead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.rollout import Phase
from pool.models import Lane, Plan
from pool.reconcilers import rollouts as loop
from pool.telemetry.store import add_cells
from tests.pool.reconcilers.test_rollouts import World

pytestmark = pytest.mark.django_db


def add_demand(world: World, *, per_s: int) -> None:
    """A request takes a second."""
    key, count = SeriesKey("smollm2", 1, "stable-1", "short", "standard"), per_s * 10
    for step in range(-3, 31):
        at = world.now.replace(second=0) - timedelta(seconds=10 * step)
        add_cells({(key, at): Cell(counts={"requests": count}, sums={"e2e_s": float(count)})})


def candidate_weight() -> int:
    return int(Plan.objects.get(in_force__model__name="smollm2").weights.get("2", 0))


def test_fc10_no_step_is_entered_that_the_candidate_does_not_carry() -> None:
    world = World()
    Lane.objects.filter(name="short").update(concurrency=4)
    world.to_first_step()
    add_demand(world, per_s=8)

    assert world.pass_step() == Phase.STEPPING

    assert candidate_weight() == 10
    assert "50 % of the present 8.2/s with 30 % head-room needs 5.3/s" in world.rollout.next_action
    assert loop.run_guard(world.now) == {}
    assert world.rollout.phase == Phase.STEPPING


def test_it_goes_on_as_soon_as_the_candidate_carries_it() -> None:
    world = World()
    world.to_first_step()
    add_demand(world, per_s=4)

    world.pass_step()

    assert candidate_weight() == 50


def test_before_the_first_weight_it_waits_too() -> None:
    world = World()
    Lane.objects.filter(name="short").update(concurrency=1)
    add_demand(world, per_s=100)
    world.start()
    world.make_candidate()
    for _ in range(4):
        world.advance()

    assert (world.rollout.phase, candidate_weight()) == (Phase.WARMING, 0)
    assert "release 2 carries about 1.0 requests/s in lane short" in world.rollout.next_action
