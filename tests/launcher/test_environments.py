import sys
from pathlib import Path

import pytest

from launcher import environments, installing
from launcher.environments import DiskFull, check_room, ensure_console, find_engine_build, find_environment
from launcher.installing import InstallFailed, PipRun, count_packages, explain_failure, read_stage, run_pip
from launcher.layout import ROOT
from launcher.progress import Progress
from pool.env import ConfigError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SLUICE_ENGINE_BUILD", raising=False)


def make_pip(folder: Path, script: str) -> Path:
    """An interpreter that does what the script says, whatever it is asked."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_an_environment_is_named_by_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock.txt"
    monkeypatch.setitem(environments._LOCKS, "console", (lock,))
    lock.write_text("django==5.2.19\n")
    first = find_environment("console").folder

    lock.write_text("django==5.2.20\n")

    assert find_environment("console").folder != first
    assert first.parent == tmp_path / "cache" / "envs"


def test_a_finished_environment_is_taken_as_it_is() -> None:
    environment = find_environment("engine-cpu")
    environment.folder.mkdir(parents=True)
    (environment.folder / environments.STAMP).touch()

    assert environments.ensure_engine(Progress(), "cpu") == environment


def test_a_half_built_environment_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = find_environment("dev")
    (environment.folder / "bin").mkdir(parents=True)
    (environment.folder / "half").touch()
    built: list[Path] = []
    monkeypatch.setattr(environments, "create_venv", lambda folder, *, log: built.append(folder))
    monkeypatch.setattr(environments, "run_pip", lambda run, *, step: environment.folder.mkdir(parents=True))

    environments.ensure_dev(Progress())

    assert built == [environment.folder]
    assert not (environment.folder / "half").exists()
    assert environment.is_complete


def test_the_engine_build_follows_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ENGINE_BUILD", "cuda")
    assert find_engine_build() == "cuda"

    monkeypatch.setenv("SLUICE_ENGINE_BUILD", "tpu")
    with pytest.raises(ConfigError, match="SLUICE_ENGINE_BUILD"):
        find_engine_build()


def test_a_disk_without_room_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="SLUICE_CACHE_DIR"):
        check_room(tmp_path, 10**18, what="The engine environment")


def test_every_pin_of_every_lock_is_exact() -> None:
    for lock in sorted(ROOT.glob("requirements*.txt")):
        pins = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
        assert pins, lock
        assert all(line.count("==") == 1 and "://" not in line for line in pins), lock


def test_the_test_environment_repeats_no_pin_of_the_console() -> None:
    def names(lock: str) -> set[str]:
        lines = (ROOT / lock).read_text().splitlines()
        return {line.partition("==")[0].lower() for line in lines if line and not line.startswith("#")}

    assert not names("requirements.txt") & names("requirements-dev.txt")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError('Temporary failure in name resolution')", "could not be reached"),
        (
            "ERROR: No matching distribution found for vllm==9.9",
            "No matching distribution found for vllm==9.9",
        ),
        ("ERROR: hash mismatch", "hash mismatch"),
        ("", "gave no reason"),
    ],
)
def test_a_failed_installation_is_explained(tmp_path: Path, output: str, words: str) -> None:
    (tmp_path / "pip.log").write_text(output)

    failure = explain_failure(tmp_path / "pip.log", what="pip install")

    assert words in failure.message
    assert str(tmp_path / "pip.log") in failure.message


def test_the_second_index_is_asked_only_when_the_first_lacks_the_cpu_build(tmp_path: Path) -> None:
    script = (
        f'echo "$@" >> {tmp_path}/asked\n'
        'case "$*" in *extra-index-url*) exit 0;; esac\n'
        'echo "ERROR: No matching distribution found for torch==2.13.0+cpu"; exit 1'
    )
    run = PipRun(make_pip(tmp_path, script), locks=(), log=tmp_path / "pip.log")

    run_pip(run)

    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert "--extra-index-url" not in asked[0]
    assert asked[1].endswith(installing.DEFAULT_TORCH_INDEX)


def test_another_failure_is_raised_at_once(tmp_path: Path) -> None:
    run = PipRun(make_pip(tmp_path, "echo ReadTimeout; exit 1"), locks=(), log=tmp_path / "pip.log")

    with pytest.raises(InstallFailed, match="could not be reached"):
        run_pip(run)


def test_progress_counts_packages(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock.txt", tmp_path / "pip.log"
    lock.write_text("# a comment\none==1\ntwo==2\n")
    log.write_text("Collecting one==1\n")

    assert count_packages(lock) == 2
    assert read_stage(log, total=2) == "package 1 of 2"
    log.write_text("Collecting one==1\nCollecting two==2\nInstalling collected packages: one, two\n")
    assert read_stage(log, total=2) == "installing 2 packages"


def test_the_console_environment_is_linked_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.setattr(environments, "ROOT", checkout)
    environment = find_environment("console")
    environment.folder.mkdir(parents=True)
    (environment.folder / environments.STAMP).touch()
    (checkout / ".venv").symlink_to("/nowhere")

    ensure_console(Progress())

    assert (checkout / ".venv").readlink() == environment.folder
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert environment.site_packages == environment.folder / "lib" / version / "site-packages"
