from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from pool.domain.routing_table import from_bytes
from pool.domain.signing import derive_internal_token
from pool.models import GatewayInstance, GatewaySnapshot, RoutingState, TokenizerFile
from pool.queries import gateway_states
from pool.services.audit import Actor
from pool.services.keys import KeyWish, create_key
from tests import factories

pytestmark = pytest.mark.django_db

ACTOR = Actor("ada", "api")


@pytest.fixture(autouse=True)
def _table(routing_state: None) -> None:
    create_key(KeyWish("app"), actor=ACTOR)


def ask(
    client: Client,
    *,
    applied: str = "0.0",
    beat: object = None,
    token: str | None = None,
    gateway: str = "gw-1",
) -> Any:
    headers = {
        "Authorization": f"Bearer {derive_internal_token(settings.SECRET_KEY) if token is None else token}"
    }
    if beat is not None:
        headers["X-Sluice-Heartbeat"] = base64.urlsafe_b64encode(json.dumps(beat).encode()).decode()
    return client.get(f"/internal/routing-table?gateway={gateway}&applied={applied}", headers=headers)


def make_beat(**changed: object) -> dict[str, object]:
    return {
        "id": "gw-1",
        "host": "host-a",
        "pid": 42,
        "started_at": "2026-11-02T08:00:00+00:00",
        "epoch": 1,
        "version": 2,
        "applied_at": "2026-11-02T08:00:01+00:00",
        "in_flight": 3,
        "nodes": {"node-a": 0.5},
        "replicas": {},
        "draining": False,
    } | changed


def test_a_gateway_that_is_behind_gets_the_signed_table(client: Client) -> None:
    answer = ask(client)

    table = from_bytes(answer.content, settings.SECRET_KEY)
    assert (answer.status_code, [key.name for key in table.keys]) == (200, ["app"])


def test_a_gateway_that_is_up_to_date_gets_204(client: Client) -> None:
    state = RoutingState.objects.get()

    answer = ask(client, applied=f"{state.epoch}.{state.version}")

    assert (answer.status_code, answer.content) == (204, b"")


def test_the_question_is_heartbeat_and_acknowledgement(client: Client) -> None:
    ask(client, beat=make_beat())
    ask(client, beat=make_beat(version=3, in_flight=0))

    row = GatewayInstance.objects.get()
    assert (row.pk, row.host, row.pid, row.epoch, row.version, row.via) == ("gw-1", "host-a", 42, 1, 3, "web")
    assert row.report["in_flight"] == 0
    assert row.applied_at is not None
    assert row.gone_at is None


def test_a_gateway_that_was_taken_for_gone_is_back_with_its_beat(client: Client) -> None:
    factories.make_gateway("gw-1", gone_at=factories.T0)

    ask(client, beat=make_beat())

    assert GatewayInstance.objects.get().gone_at is None


def test_a_beat_takes_few_statements(client: Client, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(2):
        ask(client, beat=make_beat())


@pytest.mark.parametrize("token", ["", "wrong", "ä"])
def test_without_the_shared_secret_there_is_nothing(client: Client, token: str) -> None:
    answer = ask(client, token=token)

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "not_authenticated"


def test_a_users_session_does_not_open_it(client: Client) -> None:
    client.force_login(
        factories.make_user("ada", group="admin"), backend=settings.AUTHENTICATION_BACKENDS[-1]
    )

    assert client.get("/internal/routing-table?gateway=gw-1&applied=0.0").status_code == 401


@pytest.mark.parametrize("applied", ["", "1", "a.b", "-1.0", "1.2.3", "9" * 30 + ".1"])
def test_an_order_that_is_none_is_refused(client: Client, applied: str) -> None:
    assert ask(client, applied=applied).status_code == 400


@pytest.mark.parametrize(
    "beat",
    [
        [],
        {},
        make_beat(id="another"),
        make_beat(pid="x"),
        make_beat(epoch=-1),
        make_beat(epoch=10**30),
        make_beat(applied_at="yesterday"),
        make_beat(started_at=5),
    ],
)
def test_a_beat_of_another_shape_is_refused_and_stores_nothing(client: Client, beat: object) -> None:
    answer = ask(client, beat=beat)

    assert answer.status_code == 400
    assert not GatewayInstance.objects.exists()


def test_a_beat_that_is_no_base64_or_too_long_is_refused(client: Client) -> None:
    token = derive_internal_token(settings.SECRET_KEY)
    for beat in ("=", "%%%", "A" * 600_000):
        headers = {"Authorization": f"Bearer {token}", "X-Sluice-Heartbeat": beat}
        answer = client.get("/internal/routing-table?gateway=gw-1&applied=0.0", headers=headers)

        assert answer.status_code == 400


def test_only_get_is_answered(client: Client) -> None:
    assert client.post("/internal/routing-table").status_code == 405


# Tokenizers ---------------------------------------------------------------------------------------------------


def ask_tokenizer(client: Client, digest: str, *, token: str | None = None) -> Any:
    shown = derive_internal_token(settings.SECRET_KEY) if token is None else token
    return client.get(f"/internal/tokenizer/{digest}", headers={"Authorization": f"Bearer {shown}"})


def test_a_gateway_gets_a_tokenizer_by_its_hash(client: Client) -> None:
    TokenizerFile.objects.create(digest="a" * 64, kind="tokenizer", content=b"\x00bytes", size_bytes=6)

    answer = ask_tokenizer(client, "a" * 64)

    assert (answer.status_code, answer.content) == (200, b"\x00bytes")
    assert "immutable" in answer["Cache-Control"]


@pytest.mark.parametrize("digest", ["b" * 64, "x", "..%2F..%2Fetc"])
def test_a_tokenizer_that_nobody_stored_is_not_found(client: Client, digest: str) -> None:
    assert ask_tokenizer(client, digest).status_code == 404


def test_tokenizers_are_for_gateways_only(client: Client) -> None:
    TokenizerFile.objects.create(digest="a" * 64, kind="tokenizer", content=b"", size_bytes=0)

    assert ask_tokenizer(client, "a" * 64, token="wrong").status_code == 401


def tell(client: Client, body: bytes, *, gateway: str = "gw-1", token: str | None = None) -> Any:
    secret = derive_internal_token(settings.SECRET_KEY) if token is None else token
    return client.post(
        f"/internal/gateway-state?gateway={gateway}",
        body,
        content_type="application/octet-stream",
        headers={"Authorization": f"Bearer {secret}"},
    )


def pack(state: object) -> bytes:
    return zlib.compress(json.dumps(state).encode())


def test_a_gateway_tells_web_what_pages_show_while_redis_is_silent(
    client: Client, settings: Any, django_assert_num_queries: Any
) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    gateway_states._reader.cache_clear()
    with django_assert_num_queries(1):
        tell(client, pack({"at": "2026-11-02T08:00:00+00:00", "models": {}}))

    answer = tell(client, pack({"models": {"m": {}}}))
    row = GatewaySnapshot.objects.get()
    states = gateway_states.list_gateway_states(now=row.at)
    gateway_states._reader.cache_clear()

    assert (answer.status_code, answer.content) == (204, b"")
    assert states is not None
    assert [(state.id, state.body) for state in states] == [("gw-1", {"models": {"m": {}}})]


def test_an_old_state_says_nothing_about_now(client: Client, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    gateway_states._reader.cache_clear()
    tell(client, pack({"models": {}}))
    later = GatewaySnapshot.objects.get().at + gateway_states.FRESH_FOR

    assert gateway_states.list_gateway_states(now=later) is None
    gateway_states._reader.cache_clear()


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_state_is_taken_from_gateways_only(client: Client, token: str) -> None:
    assert tell(client, pack({}), token=token).status_code == 401
    assert not GatewaySnapshot.objects.exists()


@pytest.mark.parametrize(
    ("body", "gateway"),
    [
        (b"", "gw-1"),
        (b"{}", "gw-1"),
        (pack([]), "gw-1"),
        (pack({"name": "\0"}), "gw-1"),
        (zlib.compress(b"{"), "gw-1"),
        (pack({})[:-2], "gw-1"),
        (zlib.compress(b" " * 9_000_000), "gw-1"),
        (pack({}), ""),
        (pack({}), "g" * 65),
    ],
)
def test_a_state_of_another_shape_is_refused(client: Client, body: bytes, gateway: str) -> None:
    answer = tell(client, body, gateway=gateway)

    assert answer.status_code == 400
    assert not GatewaySnapshot.objects.exists()
