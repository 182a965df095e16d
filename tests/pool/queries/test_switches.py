from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from pool.domain.prometheus import Page
from pool.models import PhaseChange, Replica
from pool.queries.switches import list_switches
from tests.pool.services.world import World, make_world
from workers.switch_metrics import fill_switches

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def world() -> World:
    return make_world()


def make_rows(world: World, count: int) -> list[Replica]:
    return [Replica.objects.create(id=f"r{number}", release=world.releases[0]) for number in range(count)]


def put_moves(world: World, row: Replica, *moves: tuple[str, float]) -> None:
    """(phase, seconds ago)."""
    Replica.objects.filter(pk=row.pk).update(node=world.node, phase=moves[-1][0], device_uuids=["cpu"])
    for phase, ago_s in moves:
        PhaseChange.objects.create(replica=row, generation=1, phase=phase, at=NOW - timedelta(seconds=ago_s))


def test_a_restart_is_told_and_what_serves_on_is_not(
    world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    first, second = make_rows(world, 2)
    put_moves(world, first, ("ready", 500))
    put_moves(world, second, ("ready", 400), ("failed", 100), ("loading", 90), ("ready", 60))

    with django_assert_num_queries(2):
        found = list_switches(world.node, NOW)

    assert [(row.pk, took.total_seconds()) for row, took in found] == [(second.pk, 40)]


def test_the_series_carries_the_replicas_labels(world: World) -> None:
    (row,) = make_rows(world, 1)
    put_moves(world, row, ("ready", 400), ("draining", 100), ("ready", 60))
    page = Page()

    fill_switches(page, world.node, NOW)

    line = page.render().splitlines()[-1]
    assert line == (
        'model_switch_duration_seconds{model="chatty",release="1",lane="",replica="r0",node="node-a"} 40'
    )
