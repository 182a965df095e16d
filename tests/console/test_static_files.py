from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from console import static_files


def test_they_are_collected_once(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.STATIC_ROOT = tmp_path / "static"

    def collect(*args: Any, **kwargs: Any) -> None:
        (tmp_path / "static" / static_files.MANIFEST).write_text("{}")

    monkeypatch.setattr(static_files, "call_command", collect)

    assert static_files.ensure_static_files() is True
    assert static_files.ensure_static_files() is False
