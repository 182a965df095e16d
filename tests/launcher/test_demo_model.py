from pathlib import Path

import pytest

from launcher import environments
from launcher.demo_model import ConversionFailed, ensure_demo_model, find_demo_model, is_complete
from launcher.environments import Environment, find_environment
from launcher.progress import Progress

CONVERTS = """
mkdir -p "$4"
echo verifying
printf weights > "$4/model.safetensors"
echo '{"files": {"model.safetensors": {"size_bytes": 7, "sha256": "x"}}}' > "$4.manifest.json"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An engine environment whose interpreter counts its calls and plays the conversion."""
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    convert = find_environment("convert")
    convert.folder.mkdir(parents=True)
    (convert.folder / environments.STAMP).touch()
    environment = Environment("engine-cpu", tmp_path / "engine", ())
    environment.python.parent.mkdir(parents=True)
    play(environment, CONVERTS)
    return environment


def play(environment: Environment, script: str) -> None:
    calls = environment.folder / "calls"
    environment.python.write_text(f"#!/bin/sh\necho x >> {calls}\n{script}")
    environment.python.chmod(0o755)


def count_calls(environment: Environment) -> int:
    return len((environment.folder / "calls").read_text().splitlines())


def test_a_complete_model_is_converted_once(engine: Environment) -> None:
    first = ensure_demo_model(engine, Progress())
    again = ensure_demo_model(engine, Progress())

    assert first == again == find_demo_model()
    assert is_complete(first)
    assert count_calls(engine) == 1


def test_fc76_a_truncated_shard_is_not_taken_for_a_model(engine: Environment) -> None:
    folder = ensure_demo_model(engine, Progress())
    (folder / "model.safetensors").write_text("weig")

    assert not is_complete(folder)
    ensure_demo_model(engine, Progress())

    assert is_complete(folder)
    assert count_calls(engine) == 2


def test_a_failed_conversion_leaves_nothing_that_looks_like_a_model(engine: Environment) -> None:
    play(engine, 'mkdir -p "$4"; echo "No space left on device"; exit 1\n')

    with pytest.raises(ConversionFailed, match="No space left on device"):
        ensure_demo_model(engine, Progress())

    assert not find_demo_model().exists()
    assert not is_complete(find_demo_model())
