"""The live socket: who may open it, what it sends, and what ends it (FC-53, FC-54, FC-64)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from console.live import consumers
from pool.models import Replica
from tests import factories
from tests.console.live.conftest import Open, make_session, read_close, read_kind

pytestmark = pytest.mark.usefixtures("seeded")


async def test_a_page_gets_the_whole_and_then_what_changed(open_socket: Open) -> None:
    socket = open_socket("/live/overview/", await make_session())
    assert await socket.connect()
    snapshot = await read_kind(socket, "snapshot")
    replica = snapshot["cells"]["replicas#"][0]

    await database_sync_to_async(lambda: Replica.objects.filter(pk=replica).update(phase="failed"))()
    delta = await read_kind(socket, "delta")

    assert delta["from"] == snapshot["seq"]
    assert delta["set"][f"replicas/{replica}/phase"] == "failed"
    assert delta["set"][f"replicas/{replica}/tone"] == "bad"
    await socket.disconnect()


async def test_rows_come_and_go(open_socket: Open) -> None:
    socket = open_socket("/live/replicas/", await make_session())
    await socket.connect()
    snapshot = await read_kind(socket, "snapshot")
    [old] = snapshot["cells"]["replicas#"]

    await database_sync_to_async(_replace_replica)()
    delta = await read_kind(socket, "delta")

    assert delta["set"]["replicas#"] == ["rnew000001"]
    assert f"replicas/{old}/phase" in delta["gone"]
    await socket.disconnect()


def _replace_replica() -> None:
    replica = Replica.objects.get()
    release = replica.release
    replica.delete()
    factories.make_replica(release, id="rnew000001", phase="pending")


async def test_a_browser_that_saw_a_gap_gets_the_whole_again(open_socket: Open) -> None:
    """FC-64"""
    socket = open_socket("/live/nodes/", await make_session())
    await socket.connect()
    first = await read_kind(socket, "snapshot")

    await socket.send({"type": "resync"})

    assert (await read_kind(socket, "snapshot"))["cells"].keys() == first["cells"].keys()
    await socket.disconnect()


async def test_nonsense_from_a_browser_is_ignored(open_socket: Open) -> None:
    socket = open_socket("/live/models/", await make_session())
    await socket.connect()
    await read_kind(socket, "snapshot")

    for text in ("{", "[]", '{"type": 5}', '"resync"', "x" * 5000):
        await socket.send_text(text)

    assert (await read_kind(socket, "beat"))["state"] == "live"
    await socket.disconnect()


@pytest.mark.parametrize("path", ["/live/overview/", "/live/model/model-0/"])
async def test_nobody_is_told_to_sign_in(open_socket: Open, path: str) -> None:
    socket = open_socket(path)
    await socket.connect()

    assert await read_close(socket) == 4401


async def test_a_user_without_a_group_sees_nothing(open_socket: Open) -> None:
    socket = open_socket("/live/overview/", await make_session(None))
    await socket.connect()

    assert await read_close(socket) == 4401


@pytest.mark.parametrize("path", ["/live/overview/", "/live/playground/"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
async def test_a_foreign_origin_is_refused(open_socket: Open, path: str, origin: str) -> None:
    """FC-53"""
    socket = open_socket(path, await make_session("admin"), origin=origin)

    assert not await socket.connect()


@pytest.mark.parametrize(("path", "code"), [("/live/replica/none/", 4404), ("/live/nothing/", 4404)])
async def test_what_does_not_exist_is_not_found(open_socket: Open, path: str, code: int) -> None:
    socket = open_socket(path, await make_session())
    await socket.connect()

    assert await read_close(socket) == code


def _sign_out() -> None:
    Session.objects.all().delete()


def _take_the_role() -> None:
    User.objects.get().groups.clear()


def _switch_off() -> None:
    User.objects.update(is_active=False)


def _change_password() -> None:
    user = User.objects.get()
    user.set_password("another-long-one")
    user.save()


@pytest.mark.parametrize("revoke", [_sign_out, _take_the_role, _switch_off, _change_password])
async def test_a_lost_right_closes_the_socket(
    open_socket: Open, monkeypatch: pytest.MonkeyPatch, revoke: Callable[[], None]
) -> None:
    """FC-54: at the latest after a recheck and a beat, which together are 5 s."""
    assert consumers.RECHECK_S + consumers.BEAT_S <= 5.0
    monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
    monkeypatch.setattr(consumers, "BEAT_S", 0.1)
    socket = open_socket("/live/overview/", await make_session())
    await socket.connect()
    await read_kind(socket, "snapshot")

    await database_sync_to_async(revoke)()

    assert await read_close(socket) == 4401
