"""The gateway as machine code: its tests over real sockets once more, where the modules are compiled.

Sources and compiled modules can differ: compiled code believes its types, and a field that was None a moment ago.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.layout import find_cache
from pool.compiled import ROOT, STAMP, hash_sources

# Patches a method, which compiled classes do not have changed.
PATCHES = "test_fc07_a_client_that_leaves_while_the_gateway_connects_costs_nothing"
# Those that neither subclass nor patch what is compiled.
FILES = (
    "test_access.py", "test_answer_sharing.py", "test_early_end.py", "test_edge_connections.py", "test_failures.py",
    "test_fc_02.py", "test_fact.py", "test_tallies.py",
    "test_fc_05_06.py", "test_fc_07.py", "test_fc_14.py", "test_fc_15.py", "test_fc_35.py", "test_fc_36.py",
    "test_fc_43.py", "test_fc_45.py", "test_lanes_live.py", "test_relay.py", "test_server.py", "test_shadows.py",
    "test_streams.py",
)  # fmt: skip


def test_the_compiled_gateway_passes_the_tests_of_the_sources() -> None:
    folder = find_cache() / "compiled" / hash_sources()
    if not (folder / STAMP).exists():
        if os.environ.get("CI") == "true":
            pytest.fail("The gateway was not compiled before the tests: `./sluice test` does that.")
        pytest.skip("the gateway's modules are not compiled; `./sluice test` does that")
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        f"not {PATCHES}",
        *map(str, map(here.joinpath, FILES)),
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SLUICE_"))}
    env |= {"SLUICE_COMPILED_DIR": str(folder), "CI": "false"}

    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
