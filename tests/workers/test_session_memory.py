from __future__ import annotations

from pathlib import Path

import pytest

from pool.process_figures import PAGE_BYTES
from workers.session_memory import SessionMemory


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path


def put_process(proc: Path, pid: int, *, faults: int, pages: int, started: int = 5) -> None:
    fields = [
        "S",
        *["0"] * 8,
        str(faults),
        "0",
        "10",
        "5",
        *["0"] * 4,
        "3",
        "0",
        str(started),
        "0",
        str(pages),
    ]
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (VLLM: core) x) {' '.join(fields)}")


def test_sizes_are_added_and_faults_are_increases(proc: Path) -> None:
    memory = SessionMemory(str(proc))
    put_process(proc, 1, faults=100, pages=10)
    put_process(proc, 2, faults=7, pages=5)
    memory.read([1, 2, 99])
    first = memory.take_major_faults()
    put_process(proc, 1, faults=103, pages=10)
    put_process(proc, 3, faults=2, pages=1)

    memory.read([1, 2, 3])

    assert memory.rss_bytes == 16 * PAGE_BYTES
    assert (first, memory.take_major_faults(), memory.take_major_faults()) == (None, 5, None)


def test_a_pid_that_is_used_again_is_another_process(proc: Path) -> None:
    memory = SessionMemory(str(proc))
    put_process(proc, 1, faults=100, pages=10)
    memory.read([1])
    put_process(proc, 1, faults=4, pages=10, started=6)

    memory.read([1])

    assert memory.take_major_faults() == 4


def test_without_a_living_process_the_size_is_unknown(proc: Path) -> None:
    memory = SessionMemory(str(proc))
    memory.read([1])

    assert memory.rss_bytes is None
