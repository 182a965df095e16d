"""What the routing table says of replicas and of the settings of lanes, models and keys."""

import pytest

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.models import Lane, Model
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
