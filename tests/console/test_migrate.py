"""Migrations beside running work: they wait for others shortly, and others for them (FC-79)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from launcher.layout import ROOT

DATABASE = "sluice_migrations"
# The wait for a lock is 5 s; the rest is Python's start on a busy machine.
LIMIT_S = 60


@pytest.fixture
def url() -> Iterator[str]:
    """An empty database beside the suite's own."""
    server = os.environ["SLUICE_DATABASE_URL"]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {DATABASE}".encode())
        yield server.replace("/sluice?", f"/{DATABASE}?")
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())


def migrate(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"SLUICE_DATABASE_URL": url, "SLUICE_PROCESS": "manage"}
    command = [sys.executable, str(ROOT / "manage.py"), "migrate", "-v", "0", "--no-input", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_migration_gives_up_on_a_busy_table_and_changes_nothing_fc79(url: str) -> None:
    first = migrate(url, "pool", "0001")
    assert first.returncode == 0, first.stderr
    with psycopg.connect(url, application_name="an open session") as held, psycopg.connect(url) as other:
        held.execute(b"LOCK TABLE pool_plan IN ROW EXCLUSIVE MODE")

        began = time.monotonic()
        refused = migrate(url)

        assert refused.returncode == 1
        assert time.monotonic() - began < LIMIT_S
        assert "Run it again" in refused.stderr
        assert "an open session" in refused.stderr
        assert "Traceback" not in refused.stderr
        other.execute(b"SELECT count(*) FROM pool_plan")
        assert list_functions(other) == []
        held.rollback()
        other.rollback()
        again = migrate(url)
    assert again.returncode == 0, again.stderr


def list_functions(connection: psycopg.Connection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return connection.execute(b"SELECT proname FROM pg_proc WHERE proname LIKE 'sluice_%'").fetchall()
