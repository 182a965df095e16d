"""Settings by REST and by page: every gateway obeys within seconds, nothing restarts, each change has its audit row."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from launcher.servers import valkey_url
from tests.journeys.installation import Answer, Installed, Process, ask, wait_until
from tests.journeys.pages import Visitor
from tests.journeys.streams import Stream

OBEYED_S = 5.0
MODEL = "models/smollm2"
LANES, SETTINGS = "/models/smollm2/lanes/", "/models/smollm2/gateway/"
WAYS = ("api", "page")
SHORT = "Who are you?"


class Live:
    """An installation whose settings are changed in one of two ways, and what its gateway then says."""

    def __init__(self, sluice: Installed) -> None:
        self.sluice = sluice
        self.visitor = Visitor(sluice)
        self.started = self.processes()

    def processes(self) -> list[Process]:
        return [self.sluice.find("gateway"), *self.sluice.engines()]

    def set_lane(self, way: str, number: int, **settings: Any) -> None:
        if way == "api":
            name = self.sluice.get(f"{MODEL}/")["model"]["lanes"][number]["name"]
            assert self.sluice.call("PATCH", f"{MODEL}/lanes/{name}/", settings).status == 200
        else:
            self.save(LANES, **{f"lane-{number}-{name}": _typed(value) for name, value in settings.items()})

    def set_model(self, way: str, **settings: Any) -> None:
        if way == "api":
            assert self.sluice.call("PATCH", f"{MODEL}/gateway/", settings).status == 200
        else:
            self.save(SETTINGS, **{name: _typed(value) for name, value in settings.items()})

    def save(self, path: str, **typed: str | None) -> None:
        answer = self.visitor.send(path, **typed)
        assert answer.status == 302, answer.content.decode()[:20_000]

    def chat(self, text: str = SHORT, *, key: str = "", release: str = "", **extra: Any) -> Answer:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 4} | extra
        headers = {"x-sluice-release": release} if release else None
        port, key = self.sluice.gateway_port, key or self.sluice.key
        return ask(port, "POST", "/v1/chat/completions", body, key=key, timeout_s=30, headers=headers)

    def obeys(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, limit_s=OBEYED_S, what=what)

    def refuses(self, code: str, text: str = SHORT, *, key: str = "", **extra: Any) -> None:
        """Within the time, with the type that clients know the reason by."""
        seen: list[Answer] = []

        def is_refused() -> bool:
            seen.append(self.chat(text, key=key, **extra))
            return _code(seen[-1]) == code

        try:
            self.obeys(is_refused, code)
        finally:
            print(f"wanted {code}, seen {[_code(answer) for answer in seen]}")  # noqa: T201  shown where it fails
        if seen[-1].status == 429:
            assert int(seen[-1].headers["retry-after"]) >= 1

    def audit(self, subject: str = "model/smollm2") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.sluice.get(f"audit/?subject={subject}&limit=200")["results"]
        return rows

    def told(self) -> dict[str, Any]:
        """What the gateway says of the model, straight from Redis."""
        installation = self.sluice.select("SELECT installation FROM pool_routingstate")[0][0]
        with redis.Redis.from_url(valkey_url(self.sluice.layout.sockets), socket_timeout=5) as client:
            states: Any = client.hgetall(f"sluice:{installation}:gateway-state")
        newest = max((json.loads(content) for content in states.values()), key=lambda state: state["at"])
        model: dict[str, Any] = newest["models"]["smollm2"]
        return model


def _typed(value: Any) -> str | None:
    """As a browser sends it: an unmarked box not at all."""
    return None if value is False else "on" if value is True else "" if value is None else str(value)


def _code(answer: Answer) -> str:
    return str(answer.json["error"]["code"]) if answer.status >= 400 else ""


@pytest.fixture
def live(sluice: Installed) -> Iterator[Live]:
    """As it was before, whatever the test set; and served by the same processes as before."""
    live = Live(sluice)
    lanes = sluice.get(f"{MODEL}/")["model"]["lanes"]
    plan = sluice.get(f"{MODEL}/plan/")
    yield live
    assert sluice.call("PUT", f"{MODEL}/gateway/", {}).status == 200
    assert sluice.call("PUT", f"{MODEL}/lanes/", {"lanes": lanes}).status == 200
    now = sluice.get(f"{MODEL}/plan/")
    if (now["weights"], now["shadow"]) != (plan["weights"], plan["shadow"]):
        sluice.post(f"{MODEL}/plans/", {name: plan[name] for name in ("weights", "shadow")})
    live.obeys(lambda: live.chat().headers["x-sluice-lane"] == "short", "as before")
    assert live.processes()[0] == live.started[0], "the gateway was restarted"


@contextmanager
def audited(live: Live, action: str, *, source: str, subject: str = "model/smollm2") -> Iterator[None]:
    """One row more, of that action and way."""
    before = live.audit(subject)
    yield
    new = live.audit(subject)[: -len(before) or None]
    assert [(row["action"], row["source"], row["actor"]) for row in new] == [(action, source, "admin")]


@pytest.mark.parametrize("way", WAYS)
def test_an_edge_moves_a_prompt_to_the_next_lane(live: Live, way: str) -> None:
    text = "word " * 40

    with audited(live, "model.lanes", source=way):
        live.set_lane(way, 0, max_prompt_tokens=16)

    live.obeys(lambda: live.chat(text).headers["x-sluice-lane"] == "mid", "the lane mid")
    assert live.processes() == live.started


@pytest.mark.parametrize("way", WAYS)
def test_a_limit_of_a_lane_is_kept_and_lifted(live: Live, way: str) -> None:
    with audited(live, "model.lanes", source=way):
        live.set_lane(way, 0, requests_per_min=2)
    live.refuses("rate_limited")
    assert live.chat("word " * 700).headers["x-sluice-lane"] == "mid"

    live.set_lane(way, 0, requests_per_min=None)

    live.obeys(lambda: live.chat().status == 200, "an answer")
    assert live.processes() == live.started


@pytest.mark.parametrize("way", WAYS)
def test_concurrency_and_queue_of_a_lane_are_bounded_live(live: Live, way: str) -> None:
    with audited(live, "model.lanes", source=way):
        live.set_lane(way, 0, concurrency=1, adaptive=False, queue_limit=0)
    live.obeys(lambda: _gate(live)["lanes"]["short"]["limit"] == 1, "the limit")
    stream = Stream(live.sluice, tokens=300)
    stream.wait_begun()

    live.refuses("queue_full")

    live.set_lane(way, 0, queue_limit=8, queue_timeout_s=0.2)
    live.refuses("queue_timeout")
    stream.finish()
    assert stream.ended_well
    assert live.processes() == live.started


@pytest.mark.parametrize("way", WAYS)
def test_the_target_of_a_lane_steers_admission_live(live: Live, way: str) -> None:
    with audited(live, "model.lanes", source=way):
        live.set_lane(way, 1, ttft_target_ms=450)

    live.obeys(lambda: _gate(live)["lanes"]["mid"]["ttft_target_s"] == 0.45, "the target")
    assert live.processes() == live.started


@pytest.mark.parametrize("way", WAYS)
def test_switches_of_the_model_let_in_or_refuse(live: Live, way: str) -> None:
    absurd: dict[str, Any] = {"temperature": 99}
    assert live.chat(**absurd).status == 400

    with audited(live, "model.gateway", source=way):
        live.set_model(way, absurd_parameters="clamp", control_characters="refuse")

    live.obeys(lambda: live.chat(**absurd).status == 200, "a clamped temperature")
    live.refuses("invalid_request", "a\x07b")
    assert live.processes() == live.started


@pytest.mark.parametrize("way", WAYS)
def test_kept_answers_and_a_limit_of_the_model_are_live(live: Live, way: str) -> None:
    question: dict[str, Any] = {"text": f"Do you keep this by {way}?", "temperature": 0}
    assert "x-sluice-cache" not in live.chat(**question).headers

    with audited(live, "model.gateway", source=way):
        live.set_model(way, cache_s=60)
    live.obeys(lambda: live.chat(**question).headers.get("x-sluice-cache") == "hit", "a kept answer")

    live.set_model(way, cache_s=0, tokens_per_min=40)
    live.refuses("rate_limited", max_tokens=30)
    assert live.processes() == live.started


@pytest.mark.parametrize("way", WAYS)
def test_watermarks_hold_back_what_is_not_short(live: Live, way: str) -> None:
    marks = {"watermark_warn_ratio": 0.051, "watermark_long_ratio": 0.052, "watermark_short_ratio": 0.053}
    typed = marks if way == "api" else {name: round(mark * 100, 1) for name, mark in marks.items()}

    with audited(live, "model.gateway", source=way):
        live.set_model(way, **typed)

    with long_requests(live):
        # Between two long requests the level falls, and a prompt that comes just then waits behind the next of them.
        wait_until(
            lambda: _watermark(live) == "short_only" and _code(live.chat("word " * 700)) == "overloaded",
            limit_s=40,
            what="what is not short is refused",
        )
        assert live.chat().headers["x-sluice-lane"] == "short"
    assert live.processes() == live.started


@contextmanager
def long_requests(live: Live) -> Iterator[None]:
    """One after the other, so that the KV cache is in use for as long as the test looks."""
    over = threading.Event()

    def ask_on() -> None:
        while not over.is_set():
            live.chat("word " * 6000, max_tokens=400)

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def _watermark(live: Live) -> str:
    (place,) = _gate(live)["replicas"].values()
    level: str = place["watermark"]["level"]
    return level


def _gate(live: Live, release: int = 1) -> dict[str, Any]:
    gate: dict[str, Any] = live.told()["releases"][str(release)]["gate"]
    return gate


@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_limited_moved_and_revoked_in_time(live: Live, way: str) -> None:
    name = f"live-{way}"
    made = live.sluice.post("keys/", {"name": name})["key"]
    live.obeys(lambda: live.chat(key=made).status == 200, "the key is known")

    with audited(live, "key.change", source=way, subject=f"key/{name}"):
        _change_key(live, way, name, tier="vip", requests_per_min=3)
    live.refuses("rate_limited", key=made)
    _change_key(live, way, name, requests_per_min=None, may_pin=True)
    live.obeys(lambda: live.chat(key=made, release="1").status == 200, "the pin is allowed")
    assert 'tier="vip"' in ask(live.sluice.gateway_port, "GET", "/metrics").content.decode()

    with audited(live, "key.revoke", source=way, subject=f"key/{name}"):
        if way == "api":
            live.sluice.post(f"keys/{name}/revoke/", {})
        else:
            assert live.visitor.click("/keys/", f"/keys/{name}/revoke/").status == 302
    live.refuses("invalid_api_key", key=made)
    assert live.processes() == live.started


def _change_key(live: Live, way: str, name: str, **changes: Any) -> None:
    if way == "api":
        assert live.sluice.call("PATCH", f"keys/{name}/", changes).status == 200
    else:
        live.save(f"/keys/{name}/", **{field: _typed(value) for field, value in changes.items()})


@pytest.fixture
def second_release(sluice: Installed) -> Iterator[int]:
    """With one ready replica and no weight."""
    listed = sluice.get(f"{MODEL}/releases/1/")
    wish = {"version": listed["version"], "runtime": listed["runtime"], "profiles": listed["profiles"]}
    number = int(sluice.post(f"{MODEL}/releases/", wish | {"replicas": 1})["number"])
    wait_until(lambda: len(sluice.replicas(phase="ready")) == 2, limit_s=60, what="a second replica")
    yield number
    sluice.post(f"{MODEL}/releases/{number}/scale/", {"replicas": 0})
    wait_until(lambda: len(sluice.engines()) == 1, limit_s=60, what="one engine")


@pytest.mark.parametrize("way", WAYS)
def test_a_shadow_sees_requests_and_its_cost_is_told(second_release: int, live: Live, way: str) -> None:
    with audited(live, "plan.set", source=way):
        if way == "api":
            shadow = {"release": second_release, "percent": 100}
            live.sluice.post(f"{MODEL}/plans/", {"weights": {"1": 100}, "shadow": shadow})
        else:
            live.save(
                f"/{MODEL}/plan/",
                shadow_release=str(second_release),
                shadow_percent="100",
                **{f"weight_{second_release}": "0", "weight_1": "100"},
            )
    before = live.told()["shadow"]

    live.obeys(lambda: _sends(live) and live.told()["shadow"]["tokens"] > before["tokens"], "a shadow")

    seen = live.sluice.get(f"{MODEL}/traffic-control/")
    assert seen["shadow_requests"] > before["requests"]
    assert "Cost so far: unknown" not in live.visitor.open(f"/{MODEL}/plan/").content.decode()
    assert live.sluice.find("gateway") == live.started[0]


def _sends(live: Live) -> bool:
    """Clients are served by the release of the plan, whatever the shadow does."""
    return live.chat().headers["x-sluice-release"] == "1"
