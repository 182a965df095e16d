"""Reduces a profiler's trace (Chrome trace events, as torch's profiler writes them) to what an operator reads.

Pure. Where the trace has device events their time counts, on the CPU that of the operations' own. Everything that is
returned is bounded: steps, kernels, names, nodes of the flame graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pool.domain.step_profiles import MAX_STEPS

MAX_KERNELS: Final = 30
MAX_NAME: Final = 120
MAX_DEPTH: Final = 24
MAX_NODES: Final = 1_500
# Nodes below this share of the whole are left out of the flame graph.
SMALLEST_SHARE: Final = 0.001

ATTENTION, MATRIX, COPIES, OTHER = "attention", "matrix_products", "copies", "other"
PARTS: Final = (ATTENTION, MATRIX, COPIES, OTHER)
# The first that fits wins. Names of vLLM 0.32 on CPU, and of the kernels that it uses on CUDA.
_CLASSES: Final = (
    (COPIES, re.compile(r"memcpy|memset|aten::(copy_|clone|contiguous|cat|index_copy|_to_copy|to$)|kv_cache_update"
                        r"|reshape_and_cache|CatArray|direct_copy", re.I)),
    (ATTENTION, re.compile(r"attention|flash|fmha|paged|mla_|softmax.*kv|varlen", re.I)),
    (MATRIX, re.compile(r"gemm|aten::(addmm|mm|bmm|matmul|linear)\b|nvjet|cutlass|cublas|xmma|mkldnn|onednn"
                        r"|scaled_mm|marlin|splitk", re.I)),
)  # fmt: skip
_STEP = re.compile(
    r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)"
)
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCH = re.compile(r"Launch(?:Kernel|Graph)|cudaGraphLaunch|cuLaunch", re.I)


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One step: seconds in all and by part; `launches_s` is the host's time in launch calls (None without a device)."""

    prefill_sequences: int
    prefill_tokens: int
    decode_sequences: int
    decode_tokens: int
    total_s: float
    parts_s: Mapping[str, float]
    launches_s: float | None
    launches: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    """`name`: cut; `part`: one of PARTS; `seconds`: over all steps."""

    name: str
    part: str
    seconds: float
    calls: int


@dataclass(slots=True)
class FlameNode:
    """`seconds` with its children."""

    name: str
    seconds: float = 0.0
    children: dict[str, FlameNode] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        ordered = sorted(self.children.values(), key=lambda child: -child.seconds)
        return {"name": self.name, "value": self.seconds, "children": [child.as_json() for child in ordered]}


@dataclass(frozen=True, slots=True)
class Profile:
    """`on_device`: whether parts and kernels are a device's time; else the host's own time of each operation."""

    on_device: bool
    steps: tuple[StepProfile, ...]
    kernels: tuple[KernelTime, ...]
    flame: FlameNode

    @property
    def shares(self) -> dict[str, float]:
        """Of the steps' time, by part; what is left of 1 passed between the operations."""
        total = sum(step.total_s for step in self.steps)
        return {part: sum(s.parts_s[part] for s in self.steps) / total for part in PARTS} if total else {}


@dataclass(slots=True)
class _Event:
    name: str
    start: float
    end: float
    category: str
    own: float = 0.0
    part: str = ""
    path: tuple[str, ...] = ()


def classify(name: str) -> str:
    return next((part for part, pattern in _CLASSES if pattern.search(name)), OTHER)


def reduce_trace(events: Iterable[Mapping[str, Any]]) -> Profile:
    """Raises ValueError for a trace without a step."""
    threads: dict[tuple[object, object], list[_Event]] = {}
    for event in events:
        if event.get("ph") == "X" and (made := _read_event(event)) is not None:
            threads.setdefault((event.get("pid"), event.get("tid")), []).append(made)
    every = [event for thread in threads.values() for event in thread]
    host = _find_steps(every, "user_annotation")
    # The host runs ahead of a device, which marks the same steps in the same order.
    steps = _find_steps(every, "gpu_user_annotation") or host
    if not steps:
        raise ValueError("The trace holds no step of the engine: nothing ran while it was taken.")
    on_device = any(event.category in _DEVICE for event in every)
    spans = [(step.start, step.end) for step in steps]
    if on_device:
        work = [
            event for event in every if event.category in _DEVICE and _find_span(spans, event) is not None
        ]
        for one in work:
            one.own, one.part = one.end - one.start, classify(one.name)
            one.path = (one.part, one.name)
    else:
        work = [event for thread in threads.values() for event in _nest(thread, spans)]
    launches = _sum_launches(host, every) if on_device else None
    return Profile(
        on_device=on_device,
        steps=tuple(_sum_steps(steps, work, launches)),
        kernels=tuple(_rank_kernels(work)),
        flame=_make_flame(work),
    )


def _read_event(event: Mapping[str, Any]) -> _Event | None:
    start, length = event.get("ts"), event.get("dur")
    if not isinstance(start, int | float) or not isinstance(length, int | float) or length < 0:
        return None
    return _Event(
        str(event.get("name", ""))[:MAX_NAME], float(start), float(start + length), str(event.get("cat", ""))
    )


def _find_steps(every: list[_Event], category: str) -> list[_Event]:
    found = [event for event in every if event.category == category and _STEP.search(event.name)]
    return sorted(found, key=lambda event: event.start)[:MAX_STEPS]


def _find_span(spans: list[tuple[float, float]], event: _Event) -> int | None:
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle][0] <= event.start:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low and event.start < spans[low - 1][1] else None


def _nest(thread: list[_Event], spans: list[tuple[float, float]]) -> Iterator[_Event]:
    """Operations inside steps with their own time: without that of operations inside them. What runs inside an
    operation of a known part belongs to that part."""
    stack: list[_Event] = []
    thread.sort(key=lambda event: (event.start, -event.end))
    for event in thread:
        if event.category != "cpu_op" or _find_span(spans, event) is None:
            continue
        while stack and stack[-1].end <= event.start:
            stack.pop()
        event.own = event.end - event.start
        above = stack[-1] if stack else None
        event.part = classify(event.name)
        if above is not None:
            above.own -= event.own
            event.part = above.part if above.part != OTHER else event.part
        event.path = ((*above.path, event.name) if above else (event.name,))[:MAX_DEPTH]
        stack.append(event)
        yield event


def _sum_launches(host: list[_Event], every: list[_Event]) -> list[tuple[float, int]]:
    """Seconds in launch calls and their number, by step of the host."""
    spans = [(step.start, step.end) for step in host]
    found = [(0.0, 0)] * len(host)
    for event in every:
        if event.category in ("cuda_runtime", "cuda_driver") and _LAUNCH.search(event.name):
            index = _find_span(spans, event)
            if index is not None:
                seconds, count = found[index]
                found[index] = (seconds + (event.end - event.start) / 1e6, count + 1)
    return found


def _sum_steps(
    steps: list[_Event], work: list[_Event], launches: list[tuple[float, int]] | None
) -> Iterator[StepProfile]:
    spans = [(step.start, step.end) for step in steps]
    parts = [dict.fromkeys(PARTS, 0.0) for _ in steps]
    for event in work:
        if (index := _find_span(spans, event)) is not None:
            parts[index][event.part] += max(0.0, event.own) / 1e6
    for number, (step, by_part) in enumerate(zip(steps, parts, strict=True)):
        found = _STEP.search(step.name)
        assert found is not None
        counts = [int(group) for group in found.groups()]
        seconds = (step.end - step.start) / 1e6
        launching, calls = launches[number] if launches and number < len(launches) else (None, 0)
        yield StepProfile(counts[0], counts[1], counts[2], counts[3], seconds, by_part, launching, calls)


def _rank_kernels(work: list[_Event]) -> Iterator[KernelTime]:
    found: dict[tuple[str, str], list[float]] = {}
    for event in work:
        row = found.setdefault((event.name, event.part), [0.0, 0])
        row[0] += max(0.0, event.own) / 1e6
        row[1] += 1
    longest = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_KERNELS]
    for (name, part), (seconds, calls) in longest:
        yield KernelTime(name, part, seconds, int(calls))


def _make_flame(work: list[_Event]) -> FlameNode:
    root = FlameNode("steps")
    nodes = 0
    for event in work:
        own = max(0.0, event.own) / 1e6
        root.seconds += own
        node = root
        for name in event.path:
            child = node.children.get(name)
            if child is None:
                if nodes >= 20 * MAX_NODES:
                    break
                nodes += 1
                child = node.children[name] = FlameNode(name)
            child.seconds += own
            node = child
    _prune(root, smallest=root.seconds * SMALLEST_SHARE, left=[MAX_NODES])
    return root


def _prune(node: FlameNode, *, smallest: float, left: list[int]) -> None:
    kept = sorted(
        (child for child in node.children.values() if child.seconds >= smallest), key=lambda c: -c.seconds
    )
    kept = kept[: left[0]]
    left[0] -= len(kept)
    node.children = {child.name: child for child in kept}
    for child in kept:
        _prune(child, smallest=smallest, left=left)
