"""Restrictions: in the routing table while they hold, prolonged but not shortened, ended once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.domain.routing_table import from_bytes
from pool.models import AuditEntry, Restriction, RoutingState
from pool.queries.routing import load_model_routes
from pool.services.audit import Actor
from pool.services.errors import Conflict, Invalid, NotFound
from pool.services.restrictions import RestrictionWish, end_due, prolong, restrict, take_back
from tests.factories import T0, make_model

pytestmark = pytest.mark.django_db
ACTOR = Actor("otto", "test")
WISH = RestrictionWish("shed_batch", "short", lasts=timedelta(minutes=5))


@pytest.fixture(autouse=True)
def _model(routing_state: None) -> None:
    make_model("smollm2")


def kinds() -> list[str]:
    return [one.kind for model in load_model_routes() for one in model.restrictions]


def stored_kinds(secret: str) -> list[str]:
    table = from_bytes(bytes(RoutingState.objects.get().body), secret)
    return [one.kind for model in table.models for one in model.restrictions]


def test_it_is_in_the_stored_table_at_once(settings: object) -> None:
    secret: str = settings.SECRET_KEY  # type: ignore[attr-defined]

    made = restrict("smollm2", WISH, actor=ACTOR, now=T0)
    assert stored_kinds(secret) == ["shed_batch"]

    take_back(made.pk, actor=ACTOR, now=T0)
    assert stored_kinds(secret) == []


def test_a_second_one_prolongs_and_never_shortens() -> None:
    restrict("smollm2", WISH, actor=ACTOR, now=T0)
    restrict("smollm2", WISH, actor=ACTOR, now=T0 + timedelta(minutes=1))
    restrict(
        "smollm2", RestrictionWish("shed_batch", "short", lasts=timedelta(seconds=10)), actor=ACTOR, now=T0
    )

    assert Restriction.objects.get().until == T0 + timedelta(minutes=6)


def test_a_rehearsal_is_in_no_table() -> None:
    restrict("smollm2", WISH, actor=ACTOR, now=T0, dry_run=True)

    assert kinds() == []
    assert AuditEntry.objects.get().action == "restriction.would_set"


def test_what_ran_out_is_noted_and_leaves_the_table() -> None:
    made = restrict("smollm2", WISH, actor=ACTOR, now=T0)

    assert end_due(T0 + timedelta(minutes=4)) == 0
    assert end_due(T0 + timedelta(minutes=5)) == 1

    made.refresh_from_db()
    assert (made.end_reason, kinds()) == ("ran_out", [])


def test_what_has_ended_is_neither_prolonged_nor_ended_again() -> None:
    made = restrict("smollm2", WISH, actor=ACTOR, now=T0)
    take_back(made.pk, actor=ACTOR, now=T0)

    prolong([made.pk], until=T0 + timedelta(hours=1))

    with pytest.raises(Conflict):
        take_back(made.pk, actor=ACTOR, now=T0)
    assert kinds() == []


@pytest.mark.parametrize(
    "wish",
    [
        RestrictionWish("scale_out"),
        RestrictionWish("shed_batch", lasts=timedelta(days=2)),
        RestrictionWish("shed_batch", lasts=timedelta(seconds=1)),
        RestrictionWish("admission_ratio", value=1.5),
    ],
)
def test_what_no_gate_can_do_is_refused(wish: RestrictionWish) -> None:
    with pytest.raises(Invalid):
        restrict("smollm2", wish, actor=ACTOR, now=T0)


def test_unknown_models_lanes_and_restrictions() -> None:
    with pytest.raises(NotFound):
        restrict("other", WISH, actor=ACTOR, now=T0)
    with pytest.raises(NotFound):
        restrict("smollm2", RestrictionWish("no_long", "nowhere"), actor=ACTOR, now=T0)
    with pytest.raises(NotFound):
        take_back(9, actor=ACTOR, now=T0)
