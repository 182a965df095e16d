"""Probing happens in the runtime's own interpreter; the worker learns facts or a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pool.env import ConfigError
from pool.ports import RuntimeRef
from workers.runtimes import ProbeFailed, probe_runtime, read_facts, read_runtimes


def test_runtimes_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[{"name": "v", "kind": "vllm", "interpreter": "/p", "pythonpath": ["/x"], "platform": "cuda"}]'
    monkeypatch.setenv("SLUICE_RUNTIMES", text)

    assert read_runtimes() == (RuntimeRef("v", "vllm", "/p", ("/x",), "cuda"),)


@pytest.mark.parametrize("text", ["{", '{"name": 1}', '[{"name": "x"}]', "7"])
def test_a_wrong_list_names_its_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SLUICE_RUNTIMES", text)

    with pytest.raises(ConfigError, match="SLUICE_RUNTIMES"):
        read_runtimes()


def test_no_list_means_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_RUNTIMES", raising=False)

    assert read_runtimes() == ()


def test_the_simulated_runtime_needs_no_probe() -> None:
    facts = probe_runtime(RuntimeRef("sim", "sim", "/nowhere"))

    assert (facts.kind, facts.version) == ("sim", "sim-1")


def test_an_interpreter_that_is_not_there_is_told() -> None:
    with pytest.raises(ProbeFailed, match="cannot be run"):
        probe_runtime(RuntimeRef("v", "vllm", "/nowhere/python"))


def test_an_environment_without_an_engine_is_told() -> None:
    with pytest.raises(ProbeFailed, match="cannot be imported: ModuleNotFoundError"):
        probe_runtime(RuntimeRef("v", "vllm", sys.executable))


def test_a_probe_that_hangs_is_ended(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)

    with pytest.raises(ProbeFailed, match="in time"):
        probe_runtime(RuntimeRef("v", "vllm", str(slow)), limit_s=0.2)


def test_what_the_probe_does_not_tell_is_unknown() -> None:
    facts = read_facts(RuntimeRef("v", "vllm", "/p"), {"version": "0.32.0"})

    assert facts.default_block_size is None
    assert facts.fastest_dtype is None
    assert facts.platform == "cpu"


def test_fc_69_no_worker_module_imports_torch_or_an_engine() -> None:
    script = (
        "import sys, importlib, pkgutil, workers, workers.engines, workers.nodehost\n"
        "names = ['workers.devices', 'workers.hosts', 'workers.warmup', 'workers.runtimes']\n"
        "names += [m.name for p in (workers.engines, workers.nodehost)\n"
        "          for m in pkgutil.iter_modules(p.__path__, p.__name__ + '.') if '__main__' not in m.name]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(sorted({'torch', 'vllm', 'django', 'transformers'} & set(sys.modules)))\n"
    )

    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"


def test_the_node_host_needs_the_standard_library_alone() -> None:
    script = (
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
        "import workers.nodehost.server, workers.nodehost.__main__\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in ('pool', 'django', 'uvloop')))\n"
    )

    answer = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"
