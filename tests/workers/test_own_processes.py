from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pool.process_figures import read_process
from workers.own_processes import read_processes


def put_record(data_dir: Path, content: Any) -> None:
    (data_dir / "run").mkdir(exist_ok=True)
    (data_dir / "run" / "supervisor.json").write_text(json.dumps(content))


def test_living_processes_are_told_by_their_names_fc68(tmp_path: Path) -> None:
    own = read_process()
    assert own is not None
    row = {"name": "web", "pid": os.getpid(), "start_time": own.started_ticks}
    another = {"name": "gateway", "pid": os.getpid(), "start_time": 1}
    waiting = {"name": "worker", "pid": None, "start_time": None}
    put_record(tmp_path, {"processes": [row, another, waiting]})

    first, second = read_processes(tmp_path), read_processes(tmp_path)

    assert set(first) == {"web"}
    assert first["web"]["rss_bytes"] > 10 * 2**20
    assert "cpu_ratio" not in first["web"]
    assert second["web"]["cpu_ratio"] >= 0


@pytest.mark.parametrize("content", [None, [], {}, {"processes": 7}, {"processes": [7, {"pid": "x"}]}])
def test_a_record_of_another_shape_tells_nothing(tmp_path: Path, content: Any) -> None:
    put_record(tmp_path, content)

    assert read_processes(tmp_path) == {}


def test_without_a_launcher_nothing_is_told(tmp_path: Path) -> None:
    assert read_processes(tmp_path) == {}
