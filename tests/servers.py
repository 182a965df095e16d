"""Early pytest plug-in: the suite's own PostgreSQL and Valkey, started before Django reads its settings.

The controller starts and stops them; xdist's workers find them through the environment, each with a Redis
database of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from launcher.servers import RunningServer, start_postgres, start_valkey

_running: list[RunningServer] = []
_folder: Path | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "console.settings"
    if "PYTEST_XDIST_WORKER" in os.environ:
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) + 1
        os.environ["SLUICE_REDIS_URL"] = os.environ["SLUICE_REDIS_URL"].replace("db=0", f"db={number}")
        return
    _start_servers()


def _start_servers() -> None:
    global _folder  # the controller's one folder, removed when the run ends
    _folder = Path(tempfile.mkdtemp(prefix="sluice-test-", dir="/tmp"))
    for name in [
        name for name in os.environ if name.startswith("SLUICE_") and not name.startswith("SLUICE_TEST_")
    ]:
        if name not in ("SLUICE_CACHE_DIR", "SLUICE_PG_BINDIR", "SLUICE_TORCH_INDEX"):
            del os.environ[name]
    run_dir = _folder / "run"
    postgres = start_postgres(_folder / "pg", run_dir, durable=False)
    valkey = start_valkey(_folder / "valkey", run_dir, durable=False)
    _running.extend([postgres, valkey])
    os.environ |= {
        "SLUICE_DATABASE_URL": postgres.url,
        "SLUICE_REDIS_URL": valkey.url,
        "SLUICE_DATA_DIR": str(_folder / "data"),
        "SLUICE_RUN_DIR": str(run_dir),
        "SLUICE_SECRET_KEY": "test-secret-key-that-is-long-enough",
    }


def pytest_unconfigure() -> None:
    while _running:
        _running.pop().stop()
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
