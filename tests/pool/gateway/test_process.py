"""A gateway as a process of its own: start, drain, signals, workers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pool.domain.routing_table import to_bytes
from pool.gateway.config import read_config, read_worker_count
from tests.pool.gateway.rig import SECRET, Rig, chat_request, make_release, make_table

ROOT = Path(__file__).parents[3]


class Child:
    """`python -m pool.gateway` on a free port."""

    def __init__(self, folder: Path, **variables: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "SLUICE_SECRET_KEY": SECRET,
            "SLUICE_DATA_DIR": str(folder),
            "SLUICE_GATEWAY_PORT": str(self.port),
            **variables,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, command: tuple[str, ...] = ("-m", "pool.gateway")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def exit_code(self, *, within_s: float = 10.0) -> int:
        assert self.process is not None
        async with asyncio.timeout(within_s):
            return await asyncio.to_thread(self.process.wait)

    @property
    def output(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path)
    yield child
    child.close()


async def serve(rig: Rig, child: Child, **switches: Any) -> None:
    """The child serves from the table on disk."""
    folder = rig.folder / "gateway"
    folder.mkdir(exist_ok=True)
    table = make_table(make_release(1, await rig.start_engine(**switches)))
    (folder / "table-0.bin").write_bytes(to_bytes(table, SECRET))
    rig.port = child.port


async def wait_until_up(rig: Rig) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                if (await rig.get("/readyz")).status == 200:
                    return
            except ConnectionError:
                await asyncio.sleep(0.02)


async def test_it_starts_and_serves_with_django_blocked(rig: Rig, child: Child) -> None:
    await serve(rig, child)
    block = (
        "import sys, runpy\n"
        "for name in ('django', 'channels', 'celery', 'psycopg'): sys.modules[name] = None\n"
        "runpy.run_module('pool.gateway', run_name='__main__')\n"
    )
    child.start(command=("-c", block))
    await wait_until_up(rig)

    answer = await rig.ask(stream=True)

    assert answer.events[-1] == "[DONE]"


async def test_fc08_sigterm_lets_what_runs_finish_and_exits_with_0(rig: Rig, child: Child) -> None:
    await serve(rig, child, gap_s=0.05, chunks=10)
    child.start()
    await wait_until_up(rig)
    idle = await rig.connect()
    streams = [await rig.connect() for _ in range(5)]
    for stream in streams:
        stream.send(chat_request(stream=True))
    await asyncio.gather(*(stream.read_until(b"data:") for stream in streams))

    child.signal(signal.SIGTERM)
    answers = await asyncio.gather(*(stream.read_response() for stream in streams))

    assert all(answer.events[-1] == "[DONE]" for answer in answers)
    assert await child.exit_code() == 0
    assert await idle.read_to_end() == b""
    with pytest.raises(ConnectionError):
        await rig.connect()


async def test_what_waits_in_the_backlog_is_answered_in_a_drain(rig: Rig, child: Child) -> None:
    await serve(rig, child)
    child.start()
    await wait_until_up(rig)

    # Stopped, it cannot accept: these connections wait in the kernel.
    child.signal(signal.SIGSTOP)
    waiting = [await rig.connect() for _ in range(20)]
    for connection in waiting:
        connection.send(chat_request())
    child.signal(signal.SIGTERM)
    child.signal(signal.SIGCONT)
    answers = await asyncio.gather(*(connection.read_response() for connection in waiting))

    assert [answer.status for answer in answers] == [200] * 20
    assert {answer.headers["connection"] for answer in answers} == {"close"}
    assert await child.exit_code() == 0


async def test_fc08_a_drain_ends_at_its_deadline(rig: Rig, child: Child) -> None:
    await serve(rig, child, stall_at=2)
    child.environment["SLUICE_GATEWAY_DRAIN_S"] = "0.3"
    child.start()
    await wait_until_up(rig)
    stream, plain = await rig.connect(), await rig.connect()
    stream.send(chat_request(stream=True))
    plain.send(chat_request())
    await stream.read_until(b"capital")
    await rig.until(lambda: len(rig.engines["r1"].calls) == 2)

    child.signal(signal.SIGTERM)
    cut = await stream.read_response()

    assert '"stream_interrupted"' in cut.events[-1]
    assert (await plain.read_response()).status == 502
    assert await child.exit_code() == 0


async def test_a_second_signal_ends_it_at_once(rig: Rig, child: Child) -> None:
    await serve(rig, child, stall_at=2)
    child.start()
    await wait_until_up(rig)
    stream = await rig.connect()
    stream.send(chat_request(stream=True))
    await stream.read_until(b"capital")

    child.signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        while True:
            try:
                (await rig.connect()).close()
            except ConnectionError:
                break
    child.signal(signal.SIGTERM)

    assert await child.exit_code(within_s=2.0) != 0


async def test_several_workers_share_the_port_and_one_that_dies_is_replaced(rig: Rig, child: Child) -> None:
    await serve(rig, child)
    child.start("--workers", "3")
    await wait_until_up(rig)
    workers = await list_children(child.pid, count=3)

    os.kill(workers[0], signal.SIGKILL)
    replaced = await list_children(child.pid, count=3, without=workers[0])

    assert len(set(replaced) - set(workers)) == 1
    assert [(await rig.ask()).status for _ in range(20)] == [200] * 20
    child.signal(signal.SIGTERM)
    assert await child.exit_code() == 0


async def test_one_answer_of_metrics_counts_all_workers(rig: Rig, child: Child) -> None:
    await serve(rig, child)
    child.start("--workers", "2")
    await wait_until_up(rig)
    for _ in range(20):
        await rig.ask()

    total = 0
    async with asyncio.timeout(5):
        while total < 20:
            page = (await rig.get("/metrics")).body.decode()
            counted = [line for line in page.splitlines() if 'outcome="ok"' in line]
            total = sum(int(line.rpartition(" ")[2]) for line in counted)
            await asyncio.sleep(0.05)

    assert total == 20
    child.signal(signal.SIGTERM)
    assert await child.exit_code() == 0


def read_children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def list_children(pid: int, *, count: int, without: int = 0) -> list[int]:
    async with asyncio.timeout(10):
        while True:
            pids = [one for one in read_children(pid) if one != without]
            if len(pids) == count:
                return pids
            await asyncio.sleep(0.02)


async def test_a_wrong_variable_stops_the_start_and_is_named(child: Child) -> None:
    child.environment["SLUICE_GATEWAY_DRAIN_S"] = "soon"
    child.start()

    assert await child.exit_code() == 2
    assert "SLUICE_GATEWAY_DRAIN_S" in child.output


async def test_a_port_in_use_stops_the_start(child: Child) -> None:
    with socket.create_server(("127.0.0.1", child.port)):
        child.start()

        assert await child.exit_code() == 2
        assert str(child.port) in child.output


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_SECRET_KEY", "s")
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SLUICE_GATEWAY_PORT", "8099")
    monkeypatch.setenv("SLUICE_GATEWAY_WORKERS", "4")

    config = read_config(worker=2)

    assert (config.port, config.worker, config.data_dir) == (8099, 2, tmp_path)
    assert config.gateway_id.endswith(":8099.2")
    assert read_worker_count() == 4
