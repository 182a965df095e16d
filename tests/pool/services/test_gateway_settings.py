import pytest

from pool.domain.gateway_settings import InvalidGatewaySettings, ModelSettings
from pool.domain.routing_table import from_bytes
from pool.models import AuditEntry, Model
from pool.services.errors import NotFound
from pool.services.gateway_settings import set_model_settings
from pool.services.routing import current_delivery
from tests.pool.services.world import ACTOR, SECRET, make_world

pytestmark = pytest.mark.django_db


def test_settings_reach_the_routing_table_and_the_audit() -> None:
    make_world()

    set_model_settings("chatty", {"cache_s": 60, "retry_ratio": 0.2}, actor=ACTOR)

    settings = from_bytes(current_delivery().body, SECRET).models[0].settings
    assert settings == ModelSettings(cache_s=60.0, retry_ratio=0.2)
    assert Model.objects.get().gateway == {"cache_s": 60.0, "retry_ratio": 0.2}
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.details) == (
        "model.gateway",
        {"changes": {"cache_s": [0.0, 60.0], "retry_ratio": [0.1, 0.2]}},
    )


def test_what_is_not_named_stays_unless_all_is_replaced() -> None:
    make_world()
    set_model_settings("chatty", {"cache_s": 60}, actor=ACTOR)

    merged = set_model_settings("chatty", {"coalesce": True}, actor=ACTOR)
    replaced = set_model_settings("chatty", {"affinity": False}, actor=ACTOR, replace=True)

    assert (merged.cache_s, merged.coalesce) == (60.0, True)
    assert replaced == ModelSettings(affinity=False)


def test_the_same_settings_again_write_nothing() -> None:
    make_world()
    before = (current_delivery().version, AuditEntry.objects.count())

    set_model_settings("chatty", {"retry_ratio": 0.1}, actor=ACTOR)

    assert (current_delivery().version, AuditEntry.objects.count()) == before


def test_a_wrong_setting_changes_nothing() -> None:
    make_world()

    with pytest.raises(InvalidGatewaySettings):
        set_model_settings("chatty", {"watermark_warn_ratio": 0.9}, actor=ACTOR)

    assert Model.objects.get().gateway == {}


def test_an_unknown_model_has_no_settings() -> None:
    make_world()

    with pytest.raises(NotFound):
        set_model_settings("nobody", {}, actor=ACTOR)
