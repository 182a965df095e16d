"""What several gateways tell of a model becomes one view; what nobody tells stays unknown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.conf import settings

from pool.models import GatewaySnapshot, RoutingState
from pool.queries import gateway_states
from pool.queries.gateway_states import GatewayState, StateReader, list_gateway_states, parse_state
from pool.queries.models import find_model
from pool.queries.traffic_control import TrafficControl, build_traffic_control, load_traffic_control
from tests import factories
from tests.browser.seed import seed_pool
from tests.browser.seed_gateways import gateway_state, seed_gateways

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MODEL = "qwen2.5-7b"


@pytest.fixture(autouse=True)
def _ask_redis_anew() -> None:
    """Another test's answer may be younger than half a second."""
    gateway_states._reader.cache_clear()


def _load(now: datetime = NOW) -> TrafficControl:
    model = find_model(MODEL)
    assert model is not None
    return load_traffic_control(MODEL, lanes=model.lanes, now=now)


def _build(*bodies: dict[str, object]) -> TrafficControl:
    model = factories.make_model(MODEL)
    release = factories.make_release(model)
    replica = factories.make_replica(release, node=factories.make_node(), id="rx8w4c5v2p")
    row = find_model(MODEL)
    assert row is not None
    states = tuple(GatewayState(f"gw-{n}", NOW, body) for n, body in enumerate(bodies))
    return build_traffic_control(states, model=MODEL, lanes=row.lanes, replicas=[replica], ttft={})


def test_the_seeded_gateways_are_summed() -> None:
    seed_pool(now=NOW)
    seed_gateways(now=NOW)

    seen = _load()

    mid = next(row for row in seen.lanes if row.lane == "mid")
    assert seen.gateways == 2
    assert (mid.in_flight, mid.queued, mid.limit, mid.oldest_wait_s) == (16, 12, 16, 1.34)
    assert (mid.growth.state, mid.refused["shed"], mid.samples) == ("no_batch", 42, 400)
    assert mid.ttft_p50_s == pytest.approx(0.94, rel=0.05)
    full = next(row for row in seen.replicas if row.id == "rx8w4c5v2p")
    assert (full.breaker.state, full.breaker.reason, full.watermark.state) == ("half_open", "hung", "no_long")
    assert (seen.cache_hits, seen.shadow_tokens, seen.retries_per_min) == (236, 36_800, 6)
    assert mid.limit_reason == "over_target"
    assert [(row.lane, row.unit, row.used, row.limit) for row in seen.limits] == [
        ("long", "tokens", 262_000, 400_000)
    ]
    assert [row.tokenizer.state for row in seen.releases] == ["ready", "degraded"]
    assert [(row.release, row.affinity_alarm) for row in seen.releases] == [(1, False), (2, True)]


def test_an_old_state_tells_nothing_of_now() -> None:
    seed_pool(now=NOW)
    seed_gateways(now=NOW)

    seen = _load(NOW + timedelta(seconds=6))

    assert seen.gateways == 0
    assert {row.in_flight for row in seen.lanes} == {None}


def test_without_any_word_all_is_unknown_and_nothing_is_zero() -> None:
    seen = _build()

    lane, replica = seen.lanes[0], seen.replicas[0]
    assert (lane.in_flight, lane.queued, lane.limit, lane.growth.state, lane.ttft_p50_s) == (
        None,
        None,
        None,
        "",
        None,
    )
    assert (replica.in_flight, replica.kv_used_ratio, replica.breaker.state) == (None, None, "")
    assert (seen.cache_hits, seen.retries_per_min, seen.releases[0].expected_hit_ratio) == (None, None, None)


def test_the_worst_of_what_gateways_see_is_shown() -> None:
    calm = gateway_state("")
    worse = gateway_state("")
    seen_by_one = worse["models"][MODEL]["releases"]["1"]["replicas"]["rx8w4c5v2p"]
    seen_by_one["breaker"] = {"phase": "open", "reason": "connect", "since_s": 2.0, "left_s": 1.5}

    breaker = _build(calm, worse).replicas[0].breaker

    assert (breaker.state, breaker.reason, breaker.left_s) == ("open", "connect", 1.5)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"models": [], "limits": {"limits": 3}},
        {"limits": {"limits": [{"id": "model:other:r", "limit": 4}, {"id": 7}, None]}},
        {"models": {MODEL: {"releases": {"x": {}, "1": {"gate": {"lanes": {"short": {"queued": "many"}}}}}}}},
        {"models": {MODEL: {"releases": {"1": {"replicas": {"rx8w4c5v2p": {"breaker": {"phase": "odd"}}}}}}}},
    ],
)
def test_another_shape_is_unknown_and_no_error(body: dict[str, object]) -> None:
    seen = _build(body)

    assert (seen.lanes[0].queued, seen.replicas[0].breaker.state) == (None, "")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"at": "soon"}', b'{"at": 1e99}', b"\xff"])
def test_what_is_no_state_is_left_out(content: bytes) -> None:
    assert parse_state("gw", content) is None


def test_a_state_may_date_itself_in_seconds() -> None:
    state = parse_state("gw", json.dumps({"at": NOW.timestamp()}).encode())

    assert state is not None
    assert state.at == NOW


def test_redis_is_asked_once_for_screens_that_look_together() -> None:
    reader = StateReader(settings.REDIS_URL)
    client = redis.Redis.from_url(settings.REDIS_URL)

    first = reader.read("once")
    client.hset("sluice:once:gateway-state", "gw", json.dumps({"at": NOW.isoformat()}))

    assert first == ()
    assert reader.read("once") == ()
    client.delete("sluice:once:gateway-state")
    client.close()


def test_a_silent_redis_is_not_an_empty_one() -> None:
    reader = StateReader("unix:///nowhere/redis.sock")

    assert reader.read("any") is None


def test_without_a_routing_state_nobody_can_be_asked() -> None:
    assert list_gateway_states(now=NOW) is None
    factories.make_routing_state()
    assert RoutingState.objects.exists()


def test_a_gateway_that_reaches_redis_no_more_is_seen_beside_those_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factories.make_routing_state()
    stored = (
        GatewayState("a", NOW, {"told": "redis"}),
        GatewayState("b", NOW - 2 * SECOND, {"told": "redis"}),
    )
    monkeypatch.setattr(StateReader, "read", lambda self, installation: stored)
    for identity in ("b", "c"):
        GatewaySnapshot.objects.create(id=identity, at=NOW - SECOND, body={"told": "web"})
    GatewaySnapshot.objects.create(id="gone", at=NOW - 6 * SECOND, body={})

    states = list_gateway_states(now=NOW)

    assert states is not None
    assert [(state.id, state.body["told"]) for state in states] == [
        ("a", "redis"),
        ("b", "web"),
        ("c", "web"),
    ]
