from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from pool.domain.manifest import FilesBroken
from pool.domain.sources import HubSource
from tests.fakes.tiny_model import make_tiny_model
from workers import fetching
from workers.fetching import (
    DiskFull,
    HubUnavailable,
    HuggingFaceHub,
    copy_version,
    fetch_from_hub,
    require_room,
)
from workers.weights import read_version


class FakeHub:
    def __init__(self, error: Exception | None = None) -> None:
        self.downloads: list[str] = []
        self.error = error

    def find_commit(self, name: str, revision: str) -> str:
        return f"commit-of-{revision or 'main'}"

    def download(self, name: str, commit: str, *, folder: Path, patterns: Sequence[str]) -> None:
        self.downloads.append(commit)
        make_tiny_model(folder)
        (folder / ".cache").mkdir()
        if self.error:
            raise self.error


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "source")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_appears_whole(tmp_path: Path, model: Path) -> None:
    manifest = read_version(model).manifest
    told: list[int] = []

    copy_version(model, tmp_path / "root" / "copy", manifest, progress=lambda done, total: told.append(done))

    assert read_version(tmp_path / "root" / "copy").manifest == manifest
    assert names_in(tmp_path / "root") == ["copy"]
    assert told[-1] == manifest.total_bytes


def test_fc76_a_copy_of_changed_files_does_not_appear(tmp_path: Path, model: Path) -> None:
    manifest = read_version(model).manifest
    (model / "config.json").write_text("{}")

    with pytest.raises(FilesBroken, match=r"config\.json is changed"):
        copy_version(model, tmp_path / "root" / "copy", manifest)

    assert names_in(tmp_path / "root") == []


def test_what_a_killed_copy_left_is_replaced(tmp_path: Path, model: Path) -> None:
    leftover = tmp_path / ".copy.partial"
    leftover.mkdir()
    (leftover / "config.json").write_text("half")

    copy_version(model, tmp_path / "copy", read_version(model).manifest)

    assert (tmp_path / "copy" / "config.json").read_bytes() == (model / "config.json").read_bytes()


def test_a_full_disk_is_told_before_anything_is_copied(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="no room") as caught:
        require_room(tmp_path, 2**60)

    assert caught.value.details["needed_bytes"] == 2**60


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path, on_chunk: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_copy_file", fail)

    with pytest.raises(DiskFull):
        copy_version(model, tmp_path / "copy", read_version(model).manifest)

    assert names_in(tmp_path) == ["source"]


def test_other_faults_of_the_disk_are_not_hidden(tmp_path: Path, model: Path) -> None:
    manifest = read_version(model).manifest
    (model / "config.json").unlink()

    with pytest.raises(FileNotFoundError):
        copy_version(model, tmp_path / "copy", manifest)


def test_a_repository_is_pinned_to_its_commit_and_fetched_once(tmp_path: Path) -> None:
    hub = FakeHub()

    folder, pinned = fetch_from_hub(HubSource("org/name", ""), tmp_path, client=hub)
    again, _ = fetch_from_hub(HubSource("org/name", "main"), tmp_path, client=hub)

    assert pinned == HubSource("org/name", "commit-of-main")
    assert folder == again == tmp_path / "hub--org--name@commit-of-main"
    assert hub.downloads == ["commit-of-main"]
    assert ".cache" not in names_in(folder)


def test_fc76_a_download_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    hub = FakeHub(error=HubUnavailable("broken off"))

    with pytest.raises(HubUnavailable):
        fetch_from_hub(HubSource("org/name", ""), tmp_path, client=hub)

    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError("no network"), HubUnavailable),
        (ValueError("bad name"), HubUnavailable),
        (RuntimeError("client closed"), HubUnavailable),
        (OSError(errno.ENOSPC, "full"), DiskFull),
    ],
)
def test_faults_of_the_hub_client_become_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)

    with pytest.raises(expected):
        HuggingFaceHub().download("org/name", "abc", folder=tmp_path, patterns=[])
    with pytest.raises(expected):
        HuggingFaceHub().find_commit("org/name", "")
