from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles.finders import FileSystemFinder

from console import static_files


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> list[str]:
    """One entry for each time."""
    calls: list[str] = []
    source = tmp_path / "source"
    source.mkdir()
    (source / "page.css").write_text("a {}")
    settings.STATICFILES_DIRS = [source]
    settings.STATIC_ROOT = tmp_path / "static"
    monkeypatch.setattr(static_files, "call_command", lambda name, **options: calls.append(name))
    monkeypatch.setattr(static_files, "get_finders", lambda: [FileSystemFinder()])
    return calls


def test_static_files_are_collected_once_in_the_data_folder(collected: list[str]) -> None:
    assert static_files.ensure_static_files() is True
    assert static_files.ensure_static_files() is False
    assert collected == ["collectstatic"]


def test_they_are_collected_anew_when_the_code_changed(collected: list[str], tmp_path: Path) -> None:
    static_files.ensure_static_files()
    (tmp_path / "source" / "page.css").write_text("b {}")

    assert static_files.ensure_static_files() is True
    assert collected == ["collectstatic", "collectstatic"]


def test_a_cut_collection_is_made_again(collected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(name: str, **options: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(static_files, "call_command", cut)
        with pytest.raises(OSError, match="the disk is full"):
            static_files.ensure_static_files()

    assert static_files.ensure_static_files() is True
    assert collected == ["collectstatic"]
