from __future__ import annotations

from pathlib import Path

import pytest

from pool.domain.chat_template_file import read_templates
from pool.domain.manifest import FileEntry, Manifest
from pool.tokenizer_folder import TokenizerChanged, read_tokenizer
from pool.weights import read_version
from tests.fakes.tiny_model import CHAT_TEMPLATE, make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "tiny")


def test_tokenizer_and_template_are_read(folder: Path) -> None:
    reading = read_tokenizer(folder, read_version(folder).manifest)

    assert reading.problem == ""
    assert reading.tokenizer == (folder / "tokenizer.json").read_bytes()
    assert reading.chat_template is not None
    assert read_templates(reading.chat_template).choose(has_tools=False) == CHAT_TEMPLATE


def test_a_model_without_a_template_has_a_tokenizer_still(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "base", chat_template=False)

    reading = read_tokenizer(folder, read_version(folder).manifest)

    assert reading.tokenizer is not None
    assert reading.chat_template is None


def test_fc41_files_of_another_kind_are_a_problem_with_a_name(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()

    reading = read_tokenizer(folder, read_version(folder).manifest)

    assert (reading.tokenizer, reading.problem) == (None, "no_tokenizer_json")


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    manifest = Manifest((FileEntry("tokenizer.json", 40 * 2**20, "0" * 64),))

    assert read_tokenizer(tmp_path, manifest).problem == "tokenizer_too_large"


def test_a_file_that_changed_is_not_taken(folder: Path) -> None:
    manifest = read_version(folder).manifest
    (folder / "tokenizer.json").write_text("{}")

    with pytest.raises(TokenizerChanged):
        read_tokenizer(folder, manifest)
