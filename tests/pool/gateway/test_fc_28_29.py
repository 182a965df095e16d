"""FC-28, FC-29: what an engine does not say, says under another name or said long ago is unknown, and never no load."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from pool.gateway.gauges import FORGOTTEN_S, Gauges, read_gauges
from pool.gateway.state import describe_plane
from tests.pool.gateway.rig import Connection, Rig, chat_request, make_release, make_table

ENGINES = ("r1", "r2", "r3")
SILENT = {
    "never": None,
    "stale": (0.0, 30.0),
    "none": (None, 0.0),
}
"""What the third engine says of its memory, and the age of that."""


def tell(rig: Rig, silent: tuple[float | None, float] | None) -> None:
    told = {(name, 1): (Gauges(0.3, 5, 0), 0.1) for name in ENGINES[:2]}
    if silent is not None:
        told["r3", 1] = (Gauges(silent[0], None, None), silent[1])
    rig.gateway.plane.neighbours.take_gauges(told, asyncio.get_running_loop().time())


async def serve_three(rig: Rig, **switches: Any) -> None:
    replicas = [await rig.start_engine(name, **switches) for name in ENGINES]
    await rig.serve(make_table(make_release(1, *replicas)))


@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT.keys())
async def test_an_engine_without_gauges_gets_its_fair_share(
    rig: Rig, silent: tuple[float | None, float] | None
) -> None:
    await serve_three(rig, gap_s=0.004, chunks=5)
    served: Counter[str] = Counter()

    async def call_in_turn(client: Connection, caller: int) -> None:
        for turn in range(25):
            tell(rig, silent)
            client.send(chat_request(prompt=f"question {caller} {turn}", stream=True))
            served[(await client.read_response()).headers["x-sluice-replica"]] += 1

    clients = [await rig.connect() for _ in range(12)]
    await asyncio.gather(*(call_in_turn(client, caller) for caller, client in enumerate(clients)))

    fair = 300 / 3
    assert all(0.8 * fair <= served[name] <= 1.2 * fair for name in ENGINES), served


@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT.keys())
async def test_pages_get_valid_json_without_invented_figures(
    rig: Rig, silent: tuple[float | None, float] | None
) -> None:
    await serve_three(rig)
    tell(rig, silent)
    now_s = asyncio.get_running_loop().time()

    described = describe_plane(rig.gateway.plane, now_s)

    json.dumps(described, allow_nan=False)
    release = described["models"]["m"]["releases"]["1"]
    watermark = release["gate"]["replicas"]["r3"]["watermark"]
    assert (watermark["used_ratio"], watermark["source"]) == (None, "unknown")
    gauges = release["replicas"]["r3"]
    assert gauges["kv_used_ratio"] is None or gauges["gauges_age_s"] >= 30.0
    assert release["replicas"]["r1"]["gauges_age_s"] < 5.0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gpu_cache_usage_perc": 0.9},
        {"kv_used_ratio": "0.9"},
        {"kv_used_ratio": -1},
        {"kv_used_ratio": True},
    ],
)
def test_another_name_or_kind_is_unknown(fields: dict[str, Any]) -> None:
    found = read_gauges(b"r1.1", json.dumps({"at_ms": 0, **fields}).encode(), 500.0)

    assert found is not None
    assert found[2].kv_used_ratio is None
    assert found[3] == 0.5


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"at_ms":"now"}', b'{"at_ms":0,"kv_used_ratio":NaN}']
)
def test_an_entry_of_no_known_shape_is_taken_out(content: bytes) -> None:
    assert read_gauges(b"r1.1", content, 0.0) is None
    assert read_gauges(b"r1.1", b'{"at_ms":0}', (FORGOTTEN_S + 1) * 1000) is None
