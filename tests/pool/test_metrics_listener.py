"""`/metrics` of a process without a server of its own."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pool.domain.prometheus import Page
from pool.metrics_listener import Fill, MetricsAddress, MetricsListener, may_read

Start = Callable[[Fill], str]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ask(url: str, path: str) -> int:
    try:
        with urllib.request.urlopen(url + path, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[MetricsListener] = []

    def begin(fill: Fill) -> str:
        listener = MetricsListener(MetricsAddress("127.0.0.1", _free_port(), "token"), fill)
        made.append(listener)
        listener.start()
        deadline = time.monotonic() + 10
        while listener.server is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.address.port}"

    yield begin
    for listener in made:
        listener.stop()


def test_a_scrape_gives_the_own_values_and_those_of_the_process(start: Start) -> None:
    url = start(lambda page: page.set("sluice_loop_passes_total", 3, loop="replicas"))

    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}

    assert families["sluice_loop_passes"].samples[0].value == 3
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    assert abs(families["process_start_time_seconds"].samples[0].value - time.time()) < 86_400


def test_what_cannot_be_gathered_is_a_failed_scrape_and_the_next_one_is_tried(start: Start) -> None:
    calls: list[int] = []

    def fill(page: Page) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no database")

    url = start(fill)

    statuses = [_ask(url, "/metrics"), _ask(url, "/metrics")]

    assert statuses == [500, 200]


def test_nothing_else_is_served(start: Start) -> None:
    url = start(lambda page: None)

    assert _ask(url, "/") == 404


def test_only_this_host_and_the_token_may_read() -> None:
    asks = [
        may_read("127.0.0.1", {}, "t"),
        may_read("127.0.0.1", {"X-Forwarded-For": "1.2.3.4"}, "t"),
        may_read("10.0.0.1", {}, "t"),
        may_read("10.0.0.1", {"Authorization": "Bearer t"}, "t"),
        may_read("10.0.0.1", {"Authorization": "Bearer "}, None),
    ]

    assert asks == [True, False, False, True, False]


def test_a_port_that_is_taken_does_not_end_the_process() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        listener = MetricsListener(MetricsAddress("127.0.0.1", holder.getsockname()[1]), lambda page: None)
        listener.start()
        listener.stop()
        listener.join(10)

    assert not listener.is_alive()
