"""The signed bytes of a routing table."""

from dataclasses import replace

import pytest

from pool.domain.routing_table import (
    KeyRoute,
    LaneRoute,
    ModelRoute,
    PlanRoute,
    ReleaseRoute,
    ReplicaRoute,
    RoutingTable,
    TableInvalid,
    from_bytes,
    to_bytes,
)
from pool.domain.signing import sign_table

SECRET = "shared"
TABLE = RoutingTable(
    installation="here",
    epoch=2,
    version=7,
    models=(
        ModelRoute(
            name="smollm2",
            lanes=(LaneRoute("short", 512), LaneRoute("long", None)),
            plan=PlanRoute(3, {1: 90, 2: 10}, {"long": {1: 100}}, {"ops": 2}, {"release": 2, "percent": 5}),
            releases=(
                ReleaseRoute(
                    1,
                    "v1",
                    "balanced",
                    "vllm",
                    (ReplicaRoute("r1", 4, "node-1", "unix:/run/r1.sock", "short", 8192, 32),),
                ),
                ReleaseRoute(2, "v2", "balanced", "sim", ()),
            ),
            starting=1,
        ),
        ModelRoute("empty", (), None, (), 0),
    ),
    keys=(
        KeyRoute("ab12", "ci", "batch", ("smollm2",), True, "ops"),
        KeyRoute("cd34", "x", "vip", None, False, ""),
    ),
)


def test_a_table_survives_its_bytes() -> None:
    assert from_bytes(to_bytes(TABLE, SECRET), SECRET) == TABLE


def test_equal_tables_have_equal_bytes() -> None:
    assert to_bytes(TABLE, SECRET) == to_bytes(replace(TABLE), SECRET.encode())


def test_the_order_is_epoch_then_version() -> None:
    assert TABLE.order == (2, 7)
    assert replace(TABLE, epoch=3, version=1).order > TABLE.order


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no table",
        b"SLUICE1 ",
        b"SLUICE1 00\n{}",
        to_bytes(TABLE, "another"),
        to_bytes(TABLE, SECRET)[:-1],
        to_bytes(TABLE, SECRET).replace(b'"version":7', b'"version":8'),
    ],
)
def test_bytes_that_were_not_signed_with_the_secret_are_refused(content: bytes) -> None:
    with pytest.raises(TableInvalid):
        from_bytes(content, SECRET)


@pytest.mark.parametrize("payload", [b"not json", b"[]", b"{}", b'{"installation":"x","epoch":null}'])
def test_signed_bytes_of_another_shape_are_refused(payload: bytes) -> None:
    content = b"SLUICE1 " + sign_table(SECRET, payload).encode() + b"\n" + payload

    with pytest.raises(TableInvalid):
        from_bytes(content, SECRET)
