"""vLLM's own serving benchmark (`vllm bench serve`) through the gateway: its options are passed on as they are.

    ./sluice bench vllm_serve --backend openai-chat --endpoint /v1/chat/completions --model smollm2 \
        --tokenizer FOLDER --dataset-name random --num-prompts 100 --request-rate 5

Without --base-url, --host or --port it asks the installation of the data folder, with that one's key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from bench._installation import Target, find_target
from launcher.environments import ensure_engine, find_engine_build
from launcher.progress import Progress

KEY_VARIABLE = "OPENAI_API_KEY"
ADDRESSES = ("--base-url", "--host", "--port")


def main(options: list[str]) -> None:
    """Does not return: the benchmark takes this program's place."""
    target = None if names_address(options) else find_target()
    engine = ensure_engine(Progress(sys.stderr), find_engine_build())
    words = [str(engine.python), "-m", "bench._vllm_bench", *make_options(options, target)]
    os.execve(engine.python, words, make_environment(os.environ, target))


def names_address(options: Sequence[str]) -> bool:
    return any(word.partition("=")[0].replace("_", "-") in ADDRESSES for word in options)


def make_options(options: Sequence[str], target: Target | None) -> list[str]:
    return [*options, *(("--base-url", target.url) if target is not None else ())]


def make_environment(variables: Mapping[str, str], target: Target | None) -> dict[str, str]:
    """Without the installation's secrets, but for the key that the benchmark shows."""
    kept = {name: value for name, value in variables.items() if not name.startswith(("SLUICE_", "PYTHON"))}
    return ({KEY_VARIABLE: target.key} if target is not None else {}) | kept


if __name__ == "__main__":
    main(sys.argv[1:])
