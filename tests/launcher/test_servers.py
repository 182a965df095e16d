"""The embedded servers, started for real: about a second each."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from launcher.servers import RunningServer, ServerError, prepare_postgres, start_postgres, start_valkey


@pytest.fixture
def servers() -> Iterator[list[RunningServer]]:
    started: list[RunningServer] = []
    yield started
    for server in started:
        server.stop()


def _count(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row
    return int(row[0])


def test_postgres_keeps_its_rows_after_kill_9(tmp_path: Path, servers: list[RunningServer]) -> None:
    first = start_postgres(tmp_path / "pg", tmp_path / "run")
    servers.append(first)
    with psycopg.connect(first.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        connection.execute("INSERT INTO kept VALUES (1)")

    first.process.kill()
    first.process.wait()
    servers.append(start_postgres(tmp_path / "pg", tmp_path / "run"))

    assert _count(first.url) == 1


def test_postgres_that_lost_its_supervisor_is_stopped_by_the_next_start(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    left_over = start_postgres(tmp_path / "pg", tmp_path / "run", durable=False)
    servers.append(left_over)

    prepare_postgres(tmp_path / "pg", tmp_path / "run")

    assert left_over.process.wait(10) == 0


def test_postgres_does_not_wait_for_a_stranger_with_its_old_pid(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    start_postgres(tmp_path / "pg", tmp_path / "run", durable=False).stop()
    (tmp_path / "pg" / "postmaster.pid").write_text(f"{os.getppid()}\n{tmp_path / 'pg'}\n")

    again = start_postgres(tmp_path / "pg", tmp_path / "run", durable=False)
    servers.append(again)

    assert again.spec.is_ready()


def test_a_half_made_cluster_is_never_used(tmp_path: Path, servers: list[RunningServer]) -> None:
    (tmp_path / "pg.init" / "base").mkdir(parents=True)

    servers.append(start_postgres(tmp_path / "pg", tmp_path / "run", durable=False))

    assert not (tmp_path / "pg.init").exists()


def test_another_major_version_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "pg").mkdir()
    (tmp_path / "pg" / "PG_VERSION").write_text("9\n")

    with pytest.raises(ServerError, match=r"written by PostgreSQL 9.*SLUICE_PG_BINDIR"):
        prepare_postgres(tmp_path / "pg", tmp_path / "run")


def test_a_folder_without_binaries_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PG_BINDIR", str(tmp_path))

    with pytest.raises(ServerError, match="SLUICE_PG_BINDIR has no usable postgres"):
        prepare_postgres(tmp_path / "pg", tmp_path / "run")


def test_valkey_keeps_its_keys_after_an_orderly_stop_and_answers_on_a_private_socket(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    first = start_valkey(tmp_path / "valkey", tmp_path / "run")
    servers.append(first)
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", "1")
    mode = (tmp_path / "run" / "valkey.sock").stat().st_mode

    first.stop()
    again = start_valkey(tmp_path / "valkey", tmp_path / "run")
    servers.append(again)

    with redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"1"
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert mode & 0o777 == 0o700


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "run" / "valkey.sock").mkdir(parents=True)

    with pytest.raises(ServerError, match="valkey did not start"):
        start_valkey(tmp_path / "valkey", tmp_path / "run")


def test_a_stopped_server_may_be_stopped_again(tmp_path: Path) -> None:
    server = start_valkey(tmp_path / "valkey", tmp_path / "run", durable=False)

    server.process.send_signal(signal.SIGTERM)
    server.stop()
    server.stop()

    assert server.process.returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root has to become somebody else")
def test_root_without_user_namespaces_runs_postgres_as_nobody_again_and_again(
    tmp_path: Path, servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a plain container: the folders above are mode 0700, and a second start finds nobody's files."""
    monkeypatch.setattr("launcher.servers.choose_identity", lambda: "nobody")
    tmp_path.chmod(0o700)

    start_postgres(tmp_path / "pg", tmp_path / "run", durable=False).stop()
    second = start_postgres(tmp_path / "pg", tmp_path / "run", durable=False)
    servers.append(second)

    assert (tmp_path / "pg").stat().st_uid == 65534
    with psycopg.connect(second.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
