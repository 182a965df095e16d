from __future__ import annotations

from datetime import timedelta

import pytest

from pool.models import RoutingState
from pool.queries.gateways import find_table_state, list_acknowledgements, list_gateways
from tests import factories
from tests.factories import T0

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def table() -> RoutingState:
    return factories.make_routing_state()


def test_a_gateway_is_up_to_date_with_the_newest_table_only(table: RoutingState) -> None:
    factories.make_gateway("new", epoch=table.epoch, version=table.version)
    factories.make_gateway("old", epoch=table.epoch - 1, version=10**9)

    assert {row.id: row.up_to_date for row in list_gateways(now=T0)} == {"new": True, "old": False}


def test_silence_shows_after_three_seconds_and_leavers_after_ten_minutes_no_more() -> None:
    factories.make_gateway("silent")
    factories.make_gateway("left", gone_at=T0)

    lately = {row.id: row.seen.state for row in list_gateways(now=T0 + timedelta(seconds=4))}
    later = [row.id for row in list_gateways(now=T0 + timedelta(minutes=11))]

    assert lately == {"silent": "stale", "left": "stale"}
    assert later == ["silent"]


def test_an_older_table_is_no_acknowledgement_and_the_gone_are_not_asked() -> None:
    factories.make_gateway("a", epoch=1, version=5, applied_at=T0)
    factories.make_gateway("b", epoch=1, version=4, applied_at=T0)
    factories.make_gateway("c", gone_at=T0)

    found = {row.id: row.applied_at for row in list_acknowledgements(epoch=1, version=5)}

    assert found == {"a": T0, "b": None}


def test_the_tables_state_is_read_without_its_bytes(table: RoutingState) -> None:
    state = find_table_state()

    assert state is not None
    assert (state.epoch, state.version) == (table.epoch, table.version)
    RoutingState.objects.all().delete()
    assert find_table_state() is None
