"""What a restore from a backup stands on: the tables' rules, and a routing table that gateways follow again."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from pool.models import RoutingState
from tests import factories


@pytest.mark.django_db
def test_the_rules_of_a_plan_hold_with_the_empty_search_path_of_pg_restore() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = ''")
        cursor.execute('SELECT public.sluice_lane_weights_valid(\'{"short": {"1": 90, "2": 10}}\')')

        assert cursor.fetchone() == (True,)


@pytest.mark.django_db
def test_raising_the_epoch_gives_the_table_a_number_above_all_others() -> None:
    factories.make_routing_state()
    before = RoutingState.objects.get()
    said = StringIO()

    call_command("raise_epoch", stdout=said)

    after = RoutingState.objects.get()
    assert (after.epoch, after.version) > (before.epoch, before.version)
    assert f"{after.epoch}.{after.version}" in said.getvalue()
