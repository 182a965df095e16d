from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.block_map import (
    LONGEST_ID,
    MOST_BLOCKS,
    MOST_REQUESTS,
    NOBODY,
    STATES,
    BadBlockMap,
    BlockOwner,
    pack_block_map,
    read_block_map,
)

OWNERS = st.builds(
    BlockOwner,
    id=st.text("abc-0123<&>", min_size=1, max_size=20),
    blocks=st.integers(0, 99),
    tokens=st.integers(0, 9999),
    tail_tokens=st.one_of(st.none(), st.integers(0, 127)),
)


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def body(**values: Any) -> bytes:
    whole = {
        "at_ms": 5,
        "block_size": 16,
        "states": packed(b"\x00\x01\x03"),
        "owners": packed(b"\xff\xff\xff\xff\x00\x00"),
        "requests": [{"id": "r", "blocks": 1, "tokens": 9, "tail_tokens": 7}],
    }
    return json.dumps(whole | values).encode()


@given(
    states=st.binary(min_size=1, max_size=300).map(lambda raw: bytes(one % len(STATES) for one in raw)),
    requests=st.lists(OWNERS, max_size=4).map(tuple),
    runs=st.dictionaries(st.integers(1, 5000), st.integers(1, 99), max_size=6),
)
def test_what_a_worker_packs_is_what_is_read(
    states: bytes, requests: tuple[BlockOwner, ...], runs: dict[int, int]
) -> None:
    owners = NOBODY.to_bytes(2, "little") * len(states)

    found = read_block_map(
        pack_block_map(
            at_ms=7,
            age_s=0.5,
            block_tokens=16,
            states=states,
            owners=owners,
            requests=requests,
            free_runs=runs,
        )
    )

    assert (found.at_ms, found.age_s, found.blocks, found.block_tokens) == (7, 0.5, len(states), 16)
    assert zlib.decompress(found.states) == states
    assert zlib.decompress(found.owners) == owners
    assert found.requests == requests
    assert found.counts == {name: states.count(number) for number, name in enumerate(STATES)}
    assert sum(found.free_runs.values()) == sum(runs.values())


def test_runs_are_counted_by_powers_of_two() -> None:
    found = read_block_map(body(runs_of_free={"1": 3, "2": 1, "3": 2, "900": 1, "0": 4}))

    assert found.free_runs == {1: 3, 2: 3, 512: 1}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 5000,
        body(states="%%%"),
        body(states=packed(b"\x00\x09\x01")),
        body(states=packed(b"\x00")),
        body(states=base64.b64encode(zlib.compress(b"\x00" * 50)[:-6]).decode()),
        body(states=packed(bytes(MOST_BLOCKS + 1))),
        body(owners=packed(b"\x00")),
        body(requests=[{"id": "r"}]),
        body(requests=None),
        body(at_ms="soon"),
        body(age_s="old"),
        body(block_size=None),
        body(runs_of_free=[1]),
    ],
)
def test_what_is_no_map_is_refused(content: bytes) -> None:
    with pytest.raises(BadBlockMap):
        read_block_map(content)


def test_many_requests_and_long_ids_are_cut() -> None:
    row = {"id": "x" * 500, "blocks": 1, "tokens": 1, "tail_tokens": 0}

    found = read_block_map(body(requests=[row] * (MOST_REQUESTS + 5)))

    assert len(found.requests) == MOST_REQUESTS
    assert len(found.requests[0].id) == LONGEST_ID
