from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.config_fields import BadModelConfig
from pool.domain.manifest import (
    Difference,
    Fault,
    FileEntry,
    FilesBroken,
    Manifest,
    Stamp,
    compare_sizes,
    files_to_hash,
    is_plain_name,
    manifest_from_json,
    manifest_to_json,
    require_whole,
    shards_of,
    stamps_from_json,
    stamps_to_json,
    weight_files,
)

CONFIG = FileEntry("config.json", 10, "a" * 64)
WEIGHTS = FileEntry("model.safetensors", 1000, "b" * 64)
MANIFEST = Manifest((CONFIG, WEIGHTS))
STAMPS = {"config.json": Stamp(10, 1, 1), "model.safetensors": Stamp(1000, 2, 2)}


def test_a_manifest_survives_storage() -> None:
    stored = json.loads(json.dumps(manifest_to_json(MANIFEST)))

    assert manifest_from_json(stored) == MANIFEST
    assert stored["total_bytes"] == 1010
    assert stored["digest"] == MANIFEST.digest


def test_stamps_survive_storage() -> None:
    assert stamps_from_json(json.loads(json.dumps(stamps_to_json(STAMPS)))) == STAMPS


def test_the_digest_depends_on_content_and_not_on_order() -> None:
    assert Manifest((WEIGHTS, CONFIG)).digest == MANIFEST.digest
    assert Manifest((replace(CONFIG, sha256="c" * 64), WEIGHTS)).digest != MANIFEST.digest


def test_equal_sizes_are_no_difference() -> None:
    assert compare_sizes(MANIFEST, {**STAMPS, "README.md": Stamp(1, 1, 1)}) == ()


@pytest.mark.parametrize(
    ("stamp", "fault"),
    [(None, Fault.MISSING), (Stamp(999, 2, 2), Fault.TRUNCATED), (Stamp(1001, 2, 2), Fault.CHANGED)],
)
def test_fc76_a_file_of_another_size_is_named_with_its_fault(stamp: Stamp | None, fault: Fault) -> None:
    found = {name: known for name, known in STAMPS.items() if name != WEIGHTS.name}
    if stamp is not None:
        found[WEIGHTS.name] = stamp

    assert compare_sizes(MANIFEST, found) == (Difference("model.safetensors", fault),)


def test_fc52_code_that_appears_later_is_a_fault() -> None:
    found = {**STAMPS, "modeling_own.py": Stamp(5, 5, 5)}

    assert compare_sizes(MANIFEST, found) == (Difference("modeling_own.py", Fault.UNEXPECTED),)


def test_only_touched_files_are_hashed_again() -> None:
    touched = {**STAMPS, "config.json": Stamp(10, 9, 1)}

    assert files_to_hash(MANIFEST, STAMPS, STAMPS) == ()
    assert files_to_hash(MANIFEST, touched, STAMPS) == ("config.json",)
    assert files_to_hash(MANIFEST, STAMPS, {}) == ("config.json", "model.safetensors")
    assert files_to_hash(MANIFEST, STAMPS, STAMPS, full=True) == ("config.json", "model.safetensors")


def test_an_index_names_its_shards() -> None:
    index = json.dumps(
        {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}
    )

    assert shards_of("i", index.encode()) == {"m-1.safetensors", "m-2.safetensors"}


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        '{"weight_map": {"a": "../x"}}',
        '{"weight_map": {"a": 1}}',
    ],
)
def test_a_broken_index_is_refused(content: str) -> None:
    with pytest.raises(BadModelConfig, match="weight_map"):
        shards_of("model.safetensors.index.json", content.encode())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.safetensors", "pytorch_model.bin"], ("model.safetensors",)),
        (["model.safetensors", "consolidated.safetensors"], ("model.safetensors",)),
        (["consolidated.safetensors"], ("consolidated.safetensors",)),
        (["pytorch_model.bin", "config.json"], ("pytorch_model.bin",)),
        (["original/model.safetensors"], ()),
    ],
)
def test_the_files_that_the_engine_loads(names: list[str], expected: tuple[str, ...]) -> None:
    assert weight_files(names) == expected


def test_an_index_decides_which_files_are_loaded() -> None:
    shards = frozenset({"b.safetensors", "a.safetensors"})

    assert weight_files(["other.safetensors"], shards=shards) == ("a.safetensors", "b.safetensors")


def test_whole_files_raise_nothing_and_broken_ones_are_listed() -> None:
    require_whole([])
    broken = [Difference(f"shard-{number}", Fault.MISSING) for number in range(7)]

    with pytest.raises(FilesBroken, match=r"shard-4 is missing and 2 more") as caught:
        require_whole(broken)

    assert len(caught.value.details["files"]) == 7  # type: ignore[arg-type]


@given(st.text(max_size=300))
def test_a_plain_name_has_no_path_in_it(name: str) -> None:
    if is_plain_name(name):
        assert "/" not in name
        assert not name.startswith(".")
        assert "\0" not in name
