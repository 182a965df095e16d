"""Entries of several processes put together: their age, what is broken, how many they are."""

from __future__ import annotations

import pytest

from pool.gateway.gauges import Gauges, read_gauges
from pool.gateway.shared_view import SharedView

NOW_MS = 1_000_000


def make_entry(name: str, *, age_ms: int = 0, load: tuple[int, int] = (1, 10)) -> tuple[bytes, bytes]:
    view = SharedView(name)
    view.provide_loads(lambda: {("r1", 2): load})
    view.provide("lanes", lambda now_s: {"by": name})
    return name.encode(), view.write(NOW_MS - age_ms, 0.0)


def make_view(*entries: tuple[bytes, bytes], processes: int = 1) -> SharedView:
    view = SharedView("me", processes=processes)
    view.absorb({}, NOW_MS - 60_000, -60.0)
    view.absorb(dict(entries), NOW_MS, 0.0)
    return view


def test_loads_of_the_others_are_summed_without_its_own() -> None:
    view = make_view(make_entry("me", load=(9, 9)), make_entry("a"), make_entry("b", load=(2, 20)))

    assert view.others("r1", 2) == (3, 30)
    assert view.process_count == 3
    assert view.describe(0.5) == {"processes": 3, "fresh": True, "others": ["a", "b"]}


@pytest.mark.parametrize(
    ("age_ms", "load", "processes", "forgotten"),
    [(900, (1, 10), 2, []), (1100, (0, 0), 2, []), (3100, (0, 0), 1, []), (10_100, (0, 0), 1, ["a"])],
)
def test_an_old_entry_loses_its_load_then_its_place(
    age_ms: int, load: tuple[int, int], processes: int, forgotten: list[str]
) -> None:
    view = SharedView("me")
    view.absorb({}, NOW_MS - 60_000, -60.0)

    assert view.absorb(dict([make_entry("a", age_ms=age_ms)]), NOW_MS, 0.0) == forgotten

    assert (view.others("r1", 2), view.process_count) == (load, processes)


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"at_ms": "x", "loads": {}, "sections": {}}', b'{"at_ms": 1, "loads": {"a": 1}}'],
)
def test_a_broken_entry_is_taken_out(content: bytes) -> None:
    view = SharedView("me")

    assert view.absorb({b"a": content}, NOW_MS, 0.0) == ["a"]
    assert view.process_count == 1


def test_sections_hold_only_while_redis_answers() -> None:
    view = make_view(make_entry("a"))

    assert list(view.list_sections("lanes", 0.9)) == [("a", {"by": "a"})]
    assert list(view.list_sections("other", 0.9)) == []
    assert list(view.list_sections("lanes", 1.1)) == []
    assert not view.is_fresh(1.1)


def test_processes_that_are_on_their_way_up_are_counted_for_a_while() -> None:
    view = SharedView("me", processes=4)
    assert view.process_count == 4

    view.absorb({}, NOW_MS, 10.0)
    assert view.process_count == 4
    view.absorb({}, NOW_MS, 13.1)

    assert view.process_count == 1


def test_gauges_that_are_missing_or_no_number_are_unknown() -> None:  # FC-28, FC-29
    content = b'{"at_ms": 999000, "kv_used_ratio": -1, "running": true, "waiting": 4, "cache_hits_tokens": 8}'

    found = read_gauges(b"r.1.3", content, NOW_MS)

    assert found == ("r.1", 3, Gauges(None, None, 4, None, 8.0), 1.0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (b"r1.1", b'{"at_ms": 1}'),
        (b"r1.1", b"{"),
        (b"r1.1", b"{}"),
        (b"r1.1", b"[1]"),
        (b"r1", b'{"at_ms": 1000000}'),
    ],
)
def test_gauges_that_are_old_or_broken_are_taken_out(name: bytes, content: bytes) -> None:
    assert read_gauges(name, content, NOW_MS) is None
