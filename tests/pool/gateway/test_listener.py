"""Who may listen on a port beside whom."""

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pool.gateway.listener import GatewayRuns, PortTaken, Seat, open_socket
from tests.pool.gateway.rig import Rig, chat_request
from tests.pool.gateway.test_process import Child, serve, wait_until_up

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts gateway processes on one port."""
    children: list[Child] = []

    def start_child(*arguments: str, folder: Path = tmp_path, **variables: str) -> Child:
        folder.mkdir(exist_ok=True)
        child = Child(folder, **variables)
        if children:
            child.port = children[0].port
            child.environment["SLUICE_GATEWAY_PORT"] = str(child.port)
        children.append(child)
        child.start(*arguments)
        return child

    yield start_child
    for child in children:
        child.close()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        found: int = probe.getsockname()[1]
    return found


def test_processes_of_one_folder_share_a_port(tmp_path: Path, port: int) -> None:
    seats = [Seat(tmp_path, port, worker) for worker in range(3)]

    sockets = [seat.open_socket("127.0.0.1") for seat in seats]

    assert {one.getsockname()[1] for one in sockets} == {port}
    for seat, listener in zip(seats, sockets, strict=True):
        listener.close()
        seat.leave()


def test_an_id_is_taken_once_until_its_holder_leaves(tmp_path: Path, port: int) -> None:
    seat = Seat(tmp_path, port, 0)
    with pytest.raises(GatewayRuns) as caught:
        Seat(tmp_path, port, 0)
    seat.mark_leaving()
    with pytest.raises(GatewayRuns) as caught_later:
        Seat(tmp_path, port, 0)
    seat.leave()

    Seat(tmp_path, port, 0).leave()

    assert not caught.value.details["is_leaving"]
    assert caught_later.value.details["is_leaving"]


def test_a_gateway_of_another_folder_is_no_neighbour(tmp_path: Path, port: int) -> None:
    seat = Seat(tmp_path, port, 0)
    with open_socket("127.0.0.1", port) as foreign:
        foreign.listen()

        with pytest.raises(PortTaken) as caught:
            seat.open_socket("127.0.0.1")

    assert "SLUICE_GATEWAY_PORT" in caught.value.message


def test_an_address_of_another_host_is_named(tmp_path: Path, port: int) -> None:
    seat = Seat(tmp_path, port, 0)

    with pytest.raises(PortTaken, match=r"203\.0\.113\.1"):
        seat.open_socket("203.0.113.1")


async def test_a_second_start_on_one_folder_is_refused_and_the_first_goes_on(rig: Rig, start: Start) -> None:
    first = start("--workers", "2")
    await serve(rig, first)
    await wait_until_up(rig)

    second = start("--workers", "2")

    assert await second.exit_code() == 2
    assert str(first.folder) in second.output
    assert first.process is not None
    assert first.process.poll() is None
    assert (await rig.get("/readyz")).status == 200


async def test_a_start_on_the_port_of_another_installation_is_refused(
    rig: Rig, start: Start, tmp_path: Path
) -> None:
    first = start()
    await serve(rig, first)
    await wait_until_up(rig)

    second = start(folder=tmp_path / "another")

    assert await second.exit_code() == 2
    assert "SLUICE_GATEWAY_PORT" in second.output


async def test_a_successor_waits_for_the_one_that_leaves(rig: Rig, start: Start) -> None:
    first = start()
    await serve(rig, first, gap_s=0.05, chunks=10)
    await wait_until_up(rig)
    stream = await rig.connect()
    stream.send(chat_request(stream=True))
    await stream.read_until(b"data:")
    first.signal(signal.SIGTERM)

    second = start()

    assert (await stream.read_response()).events[-1] == "[DONE]"
    await wait_until_up(rig)
    assert (await rig.ask()).status == 200
    assert await first.exit_code() == 0
    second.signal(signal.SIGTERM)
    assert await second.exit_code() == 0
