from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from pool.domain.errors import PoolError
from pool.domain.sources import HubSource
from pool.weights import VersionBusy, locate, version_lock
from tests.fakes.tiny_model import make_tiny_model
from workers import hub
from workers.hub import DiskFull, HubUnreachable, fetch_from_hub

SOURCE = HubSource("org/name", "v1")


class FakeDownload:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.revisions: list[str | None] = []

    def __call__(self, name: str, *, revision: str | None, local_dir: Path, **options: Any) -> None:
        self.revisions.append(revision)
        make_tiny_model(local_dir)
        (local_dir / ".cache").mkdir(exist_ok=True)
        if self.error:
            raise self.error


def install(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> FakeDownload:
    download = FakeDownload(error)
    monkeypatch.setattr(hub, "snapshot_download", download)
    return download


def test_a_fetched_version_is_found_again_and_not_fetched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = install(monkeypatch)

    folder = fetch_from_hub(SOURCE, root=tmp_path)

    assert fetch_from_hub(SOURCE, root=tmp_path) == folder == locate(SOURCE, roots=[tmp_path])
    assert download.revisions == ["v1"]
    assert not (folder / ".cache").exists()


def test_without_a_revision_the_default_branch_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = install(monkeypatch)

    fetch_from_hub(HubSource("org/name", ""), root=tmp_path)

    assert download.revisions == [None]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError("no network"), HubUnreachable),
        (ValueError("bad name"), HubUnreachable),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
    ],
)
def test_fc76_what_broke_off_does_not_count_as_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[PoolError]
) -> None:
    install(monkeypatch, error)

    with pytest.raises(expected, match="org/name"):
        fetch_from_hub(SOURCE, root=tmp_path)

    assert not any(not path.name.startswith(".") for path in tmp_path.iterdir())


def test_a_version_that_is_being_fetched_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)

    with version_lock(tmp_path / ".locks", "hub--org--name@v1"), pytest.raises(VersionBusy):
        fetch_from_hub(SOURCE, root=tmp_path)
