"""Which tables are taken, and what stays of them on disk."""

import asyncio
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool.domain.routing_table import to_bytes
from pool.gateway.config import Config
from pool.gateway.routes import Routes
from tests.pool.gateway.rig import SECRET, Rig, chat_request, make_release, make_replica, make_table

REPLICA = make_replica("r1", "unix:/nowhere.sock")


def make_routes(folder: Path, *, installation: str | None = "test", worker: int = 0) -> Routes:
    return Routes(Config(secret=SECRET, data_dir=folder, installation=installation, worker=worker))


def table_bytes(*, secret: str = SECRET, **order: Any) -> bytes:
    return to_bytes(make_table(make_release(1, REPLICA), **order), secret)


@pytest.mark.parametrize(
    ("first", "second", "in_force"),
    [
        ({"epoch": 1, "version": 5}, {"epoch": 1, "version": 6}, (1, 6)),
        ({"epoch": 1, "version": 5}, {"epoch": 1, "version": 5}, (1, 5)),
        ({"epoch": 1, "version": 5}, {"epoch": 1, "version": 4}, (1, 5)),
        ({"epoch": 1, "version": 5}, {"epoch": 2, "version": 1}, (2, 1)),
        ({"epoch": 2, "version": 1}, {"epoch": 1, "version": 9}, (2, 1)),
    ],
)
async def test_only_a_higher_epoch_or_version_is_taken(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], in_force: tuple[int, int]
) -> None:
    routes = make_routes(tmp_path)

    assert routes.offer(table_bytes(**first), now_s=0)
    taken = routes.offer(table_bytes(**second), now_s=0)

    assert routes.order == in_force
    assert taken == (in_force == (second["epoch"], second["version"]) and first != second)


async def test_a_table_with_another_signature_is_refused(tmp_path: Path) -> None:
    routes = make_routes(tmp_path)

    assert not routes.offer(table_bytes(secret="another"), now_s=0)
    assert not routes.offer(table_bytes().replace(b"nowhere", b"mallory"), now_s=0)
    assert routes.order is None


async def test_a_table_of_another_installation_is_refused(tmp_path: Path) -> None:
    routes = make_routes(tmp_path, installation="mine")

    assert not routes.offer(table_bytes(version=99), now_s=0)


async def test_a_gateway_without_an_installation_keeps_to_the_first_it_learns(tmp_path: Path) -> None:
    routes = make_routes(tmp_path, installation=None)
    foreign = to_bytes(make_table(installation="other", version=50), SECRET)

    assert routes.offer(table_bytes(), now_s=0)
    assert not routes.offer(foreign, now_s=0)
    assert routes.installation == "test"


async def test_the_newest_good_table_on_disk_is_loaded(tmp_path: Path) -> None:
    for worker, version in enumerate((3, 7, 5)):
        make_routes(tmp_path, worker=worker).store_on_disk(table_bytes(version=version))
    (tmp_path / "gateway" / "table-8.bin").write_bytes(table_bytes(version=99, secret="another"))
    (tmp_path / "gateway" / "table-9.bin").write_bytes(table_bytes(version=98)[:-20])
    (tmp_path / "gateway" / "table-10.bin").mkdir()

    routes = make_routes(tmp_path)

    assert routes.load_from_disk(now_s=0)
    assert routes.order == (1, 7)


async def test_the_table_on_disk_is_for_the_owner_only(tmp_path: Path) -> None:
    make_routes(tmp_path).store_on_disk(table_bytes())

    file = tmp_path / "gateway" / "table-0.bin"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["table-0.bin"]


async def test_a_disk_that_refuses_does_not_stop_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    routes = make_routes(tmp_path)
    monkeypatch.setattr(os, "fsync", refuse)

    routes.store_on_disk(table_bytes())

    assert not list((tmp_path / "gateway").iterdir())


async def test_a_restarted_gateway_serves_from_disk_with_everything_else_down(rig: Rig) -> None:
    replica = await rig.start_engine()
    await rig.serve(None)
    rig.gateway.plane.routes.store_on_disk(to_bytes(make_table(make_release(1, replica)), SECRET))
    await rig.gateway.stop()

    await rig.serve(None)

    assert (await rig.ask()).status == 200


async def test_fc04_only_the_current_generation_gets_new_requests(rig: Rig) -> None:
    replica = await rig.start_engine("r1", gap_s=0.05)
    await rig.serve(make_table(make_release(1, replica)))
    connection = await rig.connect()
    connection.send(chat_request(stream=True))
    await connection.read_until(b"data:")

    moved = replace(await rig.start_engine("r2"), id="r1", generation=2)
    rig.engines["r2"].key = ""
    rig.apply(make_table(make_release(1, moved), version=2))
    answer = await rig.ask()

    assert answer.status == 200
    assert len(rig.engines["r2"].calls) == 1
    # The stream on the old generation goes on to its end.
    assert (await connection.read_response()).events[-1] == "[DONE]"


async def test_fc08_a_replica_that_left_the_table_is_reported_until_it_is_empty(rig: Rig) -> None:
    replica = await rig.start_engine("r1", gap_s=0.02)
    await rig.serve(make_table(make_release(1, replica)))
    connection = await rig.connect()
    connection.send(chat_request(stream=True))
    await connection.read_until(b"data:")
    routes = rig.gateway.plane.routes
    now_s = asyncio.get_running_loop().time()

    rig.apply(make_table(make_release(1), version=2))
    routes.forget_old(now_s + 1000)
    during = rig.replica().in_flight
    await connection.read_response()
    after = rig.replica().in_flight
    routes.forget_old(now_s + 1000)

    assert (during, after) == (1, 0)
    assert list(routes.replicas) == []


async def test_a_replica_that_comes_back_keeps_its_counts(rig: Rig) -> None:
    replica = await rig.start_engine("r1")
    await rig.serve(make_table(make_release(1, replica)))
    rig.replica().in_flight = 3

    rig.apply(make_table(make_release(1), version=2))
    rig.apply(make_table(make_release(1, replica), version=3))
    await rig.ask()

    assert rig.replica().in_flight == 3
    assert rig.replica().pool.idle_count == 1
