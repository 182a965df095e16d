"""What the routing table says of replicas and of the settings of lanes, models and keys."""

from datetime import timedelta

import pytest
from django.utils import timezone

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.models import Lane, Model, Rollout
from pool.queries.routing import load_key_routes, load_model_routes
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_replica_brings_its_profiles_slots_and_the_printed_kv_tokens() -> None:
    model = factories.make_model()
    release = factories.make_release(model, lanes=("short", "long"))
    node = factories.make_node()
    figures = {"printed": {"kv_cache_tokens": 5760}}
    factories.make_replica(release, node=node, lane="short", figures=figures, id="ra")
    factories.make_replica(release, node=node, lane="mid", id="rb")

    known, unknown = load_model_routes()[0].releases[0].replicas

    assert (known.slots, known.kv_tokens) == (256, 5760)
    assert (unknown.slots, unknown.kv_tokens) == (None, None)


def test_settings_come_with_their_defaults_filled_in() -> None:
    model = factories.make_model()
    Lane.objects.filter(name="short").update(settings={"weight": 4})
    Model.objects.update(gateway={"cache_s": 5.0})
    factories.make_key("desk", tokens_per_min=10)

    route = load_model_routes()[0]

    assert route.name == model.name
    assert route.settings == ModelSettings(cache_s=5.0)
    assert route.lanes[0].settings == LaneSettings(concurrency=8, ttft_target_ms=300, weight=4)
    assert load_key_routes()[0].tokens_per_min == 10


@pytest.fixture
def rollout() -> Rollout:
    """Of release 2, on its way back; its streams are to end after 64 tokens."""
    model = factories.make_model()
    stable, candidate = (factories.make_release(model, number=number) for number in (1, 2))
    return Rollout.objects.create(
        id="ro1", model=model, candidate=candidate, stable=stable, base_plan=1, phase="rolling_back",
        steps=[], streams={"end_after_tokens": 64},
    )  # fmt: skip


def test_streams_of_a_candidate_that_is_taken_back_end_as_the_operator_wished(rollout: Rollout) -> None:
    assert load_model_routes()[0].endings == {2: 64}


@pytest.mark.parametrize(
    "changes",
    [
        {"streams": {}},
        {"phase": "stepping"},
        {"phase": "promoted", "ended_at": timezone.now()},
        {"phase": "rolled_back", "ended_at": timezone.now() - timedelta(minutes=11)},
    ],
)
def test_streams_finish_where_nobody_wished_otherwise_or_that_is_long_ago(
    rollout: Rollout, changes: dict[str, object]
) -> None:
    Rollout.objects.update(**changes)

    assert load_model_routes()[0].endings == {}


def test_a_wish_outlives_its_rollback_for_a_while_but_not_the_next_rollout(rollout: Rollout) -> None:
    now = timezone.now()
    Rollout.objects.update(phase="rolled_back", ended_at=now, created_at=now - timedelta(hours=1))
    before = load_model_routes()[0].endings

    Rollout.objects.create(
        id="ro2",
        model=rollout.model,
        candidate=rollout.candidate,
        stable=rollout.stable,
        base_plan=1,
        steps=[],
    )

    assert (before, load_model_routes()[0].endings) == ({2: 64}, {})
