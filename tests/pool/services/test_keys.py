import pytest
from django.contrib.auth.models import User

from pool.domain.names import InvalidName
from pool.domain.routing_table import from_bytes
from pool.models import AuditEntry, Key
from pool.services.audit import Actor
from pool.services.errors import Conflict, Invalid, NotFound
from pool.services.keys import (
    KeyWish,
    change_key,
    create_key,
    create_token,
    digest_key,
    find_token_user,
    revoke_key,
    revoke_token,
)
from pool.services.routing import current_delivery
from tests.pool.services.world import SECRET, make_world

pytestmark = pytest.mark.django_db
ACTOR = Actor("olga", "api")


def test_a_key_is_shown_once_and_only_its_hmac_is_stored_fc20() -> None:
    make_world()

    key, value = create_key(KeyWish("mobile-app", tier="vip", label="mobile"), actor=ACTOR)

    assert value.startswith("sk-sluice-")
    assert key.digest == digest_key(value)
    stored = (
        str(list(Key.objects.values()))
        + str(list(AuditEntry.objects.values()))
        + str(current_delivery().body)
    )
    assert value not in stored
    assert from_bytes(current_delivery().body, SECRET).keys[0].digest == key.digest


def test_a_revoked_key_leaves_the_table_and_stays_revoked_once() -> None:
    make_world()
    create_key(KeyWish("old"), actor=ACTOR)

    first = revoke_key("old", actor=ACTOR)
    second = revoke_key("old", actor=ACTOR)

    assert from_bytes(current_delivery().body, SECRET).keys == ()
    assert first.revoked_at == second.revoked_at
    assert AuditEntry.objects.filter(action="key.revoke").count() == 1


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        (KeyWish("a", tier="gold"), Invalid),
        (KeyWish("a", allowed_models=("nobody",)), Invalid),
        (KeyWish("<img src=x>"), InvalidName),
        (KeyWish("a", requests_per_min=0), Invalid),
        (KeyWish("a", tokens_per_min=2**31), Invalid),
        (KeyWish("a", keepalive_s=0.2), Invalid),
    ],
)
def test_a_wrong_wish_is_refused(wish: KeyWish, error: type[Exception]) -> None:
    make_world()

    with pytest.raises(error):
        create_key(wish, actor=ACTOR)

    assert not Key.objects.exists()


def test_a_keys_limits_reach_the_routing_table() -> None:
    make_world()
    create_key(KeyWish("desk", requests_per_min=60, keepalive_s=15), actor=ACTOR)

    change_key("desk", {"tier": "vip", "requests_per_min": None, "tokens_per_min": 9000}, actor=ACTOR)

    (route,) = from_bytes(current_delivery().body, SECRET).keys
    assert (route.tier, route.requests_per_min, route.tokens_per_min, route.keepalive_s) == (
        "vip",
        None,
        9000,
        15.0,
    )
    assert AuditEntry.objects.latest("id").details["changes"] == {
        "tier": ["standard", "vip"],
        "requests_per_min": [60, None],
        "tokens_per_min": [None, 9000],
    }


def test_a_key_that_is_so_already_writes_nothing() -> None:
    make_world()
    create_key(KeyWish("desk", allowed_models=("chatty",)), actor=ACTOR)
    before = (current_delivery().version, AuditEntry.objects.count())

    change_key("desk", {"allowed_models": ("chatty",), "label": ""}, actor=ACTOR)

    assert (current_delivery().version, AuditEntry.objects.count()) == before


def test_a_revoked_key_is_not_changed() -> None:
    make_world()
    create_key(KeyWish("desk"), actor=ACTOR)
    revoke_key("desk", actor=ACTOR)

    with pytest.raises(Conflict, match="revoked for good"):
        change_key("desk", {"tier": "vip"}, actor=ACTOR)


def test_an_unknown_key_is_not_changed() -> None:
    make_world()

    with pytest.raises(NotFound):
        change_key("nobody", {}, actor=ACTOR)


def test_a_name_is_used_once() -> None:
    make_world()
    create_key(KeyWish("same"), actor=ACTOR)

    with pytest.raises(Conflict):
        create_key(KeyWish("same"), actor=ACTOR)


def test_an_unknown_key_cannot_be_revoked() -> None:
    make_world()

    with pytest.raises(NotFound):
        revoke_key("nobody", actor=ACTOR)


def test_a_token_acts_as_its_user_until_it_is_revoked() -> None:
    user = User.objects.create_user("vera")
    token, value = create_token(user, name="script", actor=ACTOR)

    assert find_token_user(value) == user
    revoke_token(token, actor=ACTOR)
    assert find_token_user(value) is None


def test_a_token_of_an_inactive_user_is_void() -> None:
    user = User.objects.create_user("vera", is_active=False)
    _, value = create_token(user, name="script", actor=ACTOR)

    assert find_token_user(value) is None
