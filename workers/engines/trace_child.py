"""`python -m workers.engines.trace_child FILE MAX_BYTES`: reads a trace in a process of its own and prints its figures.

To read a hundred MiB of JSON holds the interpreter for seconds and takes eight times that memory: in the worker, leases
would run out meanwhile. What the file may cost is bounded by the kernel here.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from workers.engines.trace import FlameNode, KernelTime, Profile, StepProfile, reduce_trace

MEMORY_BYTES: Final = 3 << 30
"""Of address space; the largest trace that is read takes half of it."""
CPU_S: Final = 60
TOO_LARGE: Final = "The trace is too large. Profile fewer steps."


def main(argv: list[str]) -> int:
    path, limit = Path(argv[0]), int(argv[1])
    _restrict()
    try:
        answer: dict[str, Any] = {"profile": dump_profile(reduce_trace(_read_events(path, limit)))}
    except MemoryError:
        answer = {"failed": TOO_LARGE}
    except Exception as exc:
        # The edge of this process: whatever an engine wrote, the worker is told why it is no profile.
        answer = {"failed": TOO_LARGE if str(exc) == TOO_LARGE else f"The trace cannot be read: {exc}"}
    sys.stdout.write(json.dumps(answer))
    return 0


def dump_profile(profile: Profile) -> dict[str, Any]:
    return {
        "on_device": profile.on_device,
        "steps": [asdict(step) for step in profile.steps],
        "kernels": [asdict(kernel) for kernel in profile.kernels],
        "flame": profile.flame.as_json(),
    }


def load_profile(content: Mapping[str, Any]) -> Profile:
    return Profile(
        on_device=content["on_device"],
        steps=tuple(StepProfile(**step) for step in content["steps"]),
        kernels=tuple(KernelTime(**kernel) for kernel in content["kernels"]),
        flame=_load_node(content["flame"]),
    )


def _load_node(content: Mapping[str, Any]) -> FlameNode:
    children = {child["name"]: _load_node(child) for child in content["children"]}
    return FlameNode(content["name"], content["value"], children)


def _restrict() -> None:
    os.nice(10)
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (limit if hard < 0 else min(limit, hard), hard))


def _read_events(path: Path, limit: int) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as unpacked:
        content = (unpacked if path.suffix == ".gz" else raw).read(limit + 1)
    if len(content) > limit:
        raise ValueError(TOO_LARGE)
    events = json.loads(content)["traceEvents"]
    del content
    yield from (event for event in events if isinstance(event, dict))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
