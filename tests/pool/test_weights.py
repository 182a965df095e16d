from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pool import weights
from pool.domain.config_fields import BadModelConfig
from pool.domain.manifest import FilesBroken
from pool.domain.sources import HubSource, PackageSource, PathSource
from pool.weights import (
    PathOutsideRoots,
    SourceNotFound,
    VersionBusy,
    inspect_files,
    locate,
    read_version,
    scan_folder,
    verify_files,
    version_lock,
)
from tests.fakes.tiny_model import Shape, make_tiny_model, truncate_weights


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def model(root: Path) -> Path:
    return make_tiny_model(root / "tiny", Shape(layers=2))


def test_a_folder_is_found_by_its_name_or_its_whole_path(root: Path, model: Path) -> None:
    assert locate(PathSource("tiny"), roots=[root]) == model
    assert locate(PathSource(str(model)), roots=[root]) == model


def test_the_first_root_that_has_it_counts(tmp_path: Path, root: Path, model: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    assert locate(PathSource("tiny"), roots=[empty, root]) == model


@pytest.mark.parametrize("folder", ["/etc", "../models2", "tiny/../../x"])
def test_fc51_a_path_outside_of_the_roots_is_refused(tmp_path: Path, root: Path, folder: str) -> None:
    (tmp_path / "models2").mkdir()

    with pytest.raises(PathOutsideRoots) as caught:
        locate(PathSource(folder), roots=[root])

    assert "etc" not in caught.value.message


def test_fc51_a_link_that_leads_out_is_refused(tmp_path: Path, root: Path) -> None:
    (root / "link").symlink_to(tmp_path)

    with pytest.raises(PathOutsideRoots):
        locate(PathSource("link"), roots=[root])


@pytest.mark.parametrize(
    "folder",
    ["a\0b", "%2e%2e/x", pytest.param("x" * 5000, id="too_long"), "missing", "loop/x"],
)
def test_fc51_what_is_no_folder_is_not_found(root: Path, folder: str) -> None:
    (root / "loop").symlink_to("loop")

    with pytest.raises(SourceNotFound):
        locate(PathSource(folder), roots=[root])


def test_without_roots_nothing_is_inside(root: Path) -> None:
    with pytest.raises(PathOutsideRoots):
        locate(PathSource(str(root)), roots=[])


def test_a_package_is_where_its_conversion_was_put(model: Path) -> None:
    assert locate(PackageSource("llm-tiny"), roots=[], packages={"llm-tiny": model}) == model


@pytest.mark.parametrize("packages", [None, {}, {"llm-tiny": Path("/nowhere")}])
def test_a_package_that_was_not_converted_is_named(packages: dict[str, Path] | None) -> None:
    with pytest.raises(SourceNotFound, match="llm-tiny"):
        locate(PackageSource("llm-tiny"), roots=[], packages=packages)


def test_a_fetched_repository_lies_under_a_root_by_its_commit(root: Path) -> None:
    folder = root / "hub--org--name@abc"
    folder.mkdir()

    assert locate(HubSource("org/name", "abc"), roots=[root]) == folder


def test_a_version_is_read_with_hashes_and_facts(root: Path, model: Path) -> None:
    reading = read_version(model, roots=[root])

    config = reading.manifest.entry("config.json")
    assert config is not None
    assert config.sha256 == hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
    assert reading.manifest.entry("missing") is None
    assert reading.stamps.keys() == {entry.name for entry in reading.manifest.files}
    assert reading.facts.layers == 2
    assert reading.facts.parameters_exact
    assert reading.facts.weight_bytes == (model / "model.safetensors").stat().st_size
    assert reading.facts.has_chat_template


def test_progress_is_told_in_bytes(model: Path) -> None:
    calls: list[tuple[int, int]] = []

    reading = read_version(model, progress=lambda done, total: calls.append((done, total)))

    assert calls[-1] == (reading.manifest.total_bytes, reading.manifest.total_bytes)


def test_hidden_files_and_folders_are_left_out(model: Path) -> None:
    (model / ".cache").mkdir()
    (model / ".cache" / "x").write_text("x")
    (model / ".lock").write_text("x")

    assert not any(name.startswith(".") for name in scan_folder(model))


def test_files_that_are_no_files_are_left_out(model: Path) -> None:
    os.mkfifo(model / "pipe.json")

    assert "pipe.json" not in scan_folder(model)


def test_fc51_a_file_that_links_out_of_the_roots_is_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (model / "extra.json").symlink_to(tmp_path / "secret")

    with pytest.raises(PathOutsideRoots, match=r"extra\.json"):
        scan_folder(model)


def test_a_file_that_links_into_a_root_is_read(root: Path, model: Path) -> None:
    (root / "blob").write_text("{}")
    (model / "extra.json").symlink_to(root / "blob")

    assert scan_folder(model, roots=[root])["extra.json"].size_bytes == 2


def test_a_link_to_nothing_is_named(model: Path) -> None:
    (model / "gone.json").symlink_to(model / "nothing")

    with pytest.raises(SourceNotFound, match=r"gone\.json"):
        scan_folder(model)


def test_a_folder_of_too_many_files_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MAX_FILES", 2)

    with pytest.raises(SourceNotFound, match="more than 2 files"):
        scan_folder(model)


def test_fc76_a_truncated_shard_is_refused_before_anything_is_hashed(model: Path) -> None:
    truncate_weights(model)

    with pytest.raises(FilesBroken, match=r"model\.safetensors is truncated"):
        read_version(model, progress=lambda done, total: pytest.fail("hashed"))


def test_fc76_a_missing_shard_of_an_index_is_named(model: Path) -> None:
    shards = {"a": "model.safetensors", "b": "model-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))

    with pytest.raises(FilesBroken, match=r"model-00002\.safetensors is missing"):
        read_version(model)


def test_two_indexes_are_refused(model: Path) -> None:
    for name in ("model", "other"):
        (model / f"{name}.safetensors.index.json").write_text("{}")

    with pytest.raises(BadModelConfig, match="several"):
        read_version(model)


def test_weights_of_an_older_format_count_by_size(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")

    facts = read_version(model).facts

    assert facts.weight_bytes == (model / "pytorch_model.bin").stat().st_size
    assert not facts.parameters_exact
    assert facts.castable_elements is None


@pytest.mark.parametrize(
    ("missing", "words"), [("config.json", "no model folder"), ("model.safetensors", "no weights")]
)
def test_a_folder_without_config_or_weights_says_so(model: Path, missing: str, words: str) -> None:
    (model / missing).unlink()

    with pytest.raises(SourceNotFound, match=words):
        read_version(model)


def test_fc52_remote_code_is_among_the_facts(root: Path) -> None:
    model = make_tiny_model(root / "remote", auto_map=True)

    assert inspect_files(model, scan_folder(model)).has_remote_code


def test_fc75_a_model_without_a_template_is_told_apart(root: Path) -> None:
    model = make_tiny_model(root / "base", chat_template=False)

    assert not inspect_files(model, scan_folder(model)).has_chat_template


def test_untouched_files_are_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read_version(model)
    monkeypatch.setattr(weights, "hash_file", lambda *args: pytest.fail("read again"))

    assert verify_files(model, reading.manifest, known=reading.stamps) == reading.stamps


def test_a_touched_file_is_read_again_and_keeps_its_new_stamp(model: Path) -> None:
    reading = read_version(model)
    os.utime(model / "config.json", ns=(1, 1))

    stamps = verify_files(model, reading.manifest, known=reading.stamps)

    assert stamps["config.json"].mtime_ns == 1
    assert stamps["model.safetensors"] == reading.stamps["model.safetensors"]


def test_fc76_changed_content_of_the_same_size_is_found(model: Path) -> None:
    reading = read_version(model)
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(FilesBroken, match=r"model\.safetensors is changed"):
        verify_files(model, reading.manifest, known=reading.stamps)


def test_a_full_check_finds_what_the_stamps_hide(model: Path) -> None:
    reading = read_version(model)
    path = model / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xaa")
    stamp = reading.stamps["model.safetensors"]
    os.utime(path, ns=(stamp.mtime_ns, stamp.mtime_ns))

    assert verify_files(model, reading.manifest, known=reading.stamps)
    with pytest.raises(FilesBroken, match="changed"):
        verify_files(model, reading.manifest, known=reading.stamps, full=True)


def test_a_file_that_changes_while_it_is_read_is_named(model: Path) -> None:
    def touch(done: int, total: int) -> None:
        os.utime(model / "config.json", ns=(done, done))

    with pytest.raises(FilesBroken, match=r"config\.json is changed"):
        read_version(model, progress=touch)


def test_files_that_are_gone_are_named(model: Path) -> None:
    reading = read_version(model)
    (model / "tokenizer.json").unlink()

    with pytest.raises(FilesBroken, match=r"tokenizer\.json is missing"):
        verify_files(model, reading.manifest, known=reading.stamps)


def test_one_version_is_read_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "locks"

    def enter() -> None:
        with version_lock(folder, "v1"):
            pass

    with version_lock(folder, "v1"):
        _assert_busy(enter)
        with version_lock(folder, "v2"):
            pass
    enter()


def _assert_busy(action: Callable[[], None]) -> None:
    with pytest.raises(VersionBusy, match="v1"):
        action()
