"""What a fatal line of an engine's log means: a code, whether time heals it, its figures, what to change.

Pure: text and exit status in, a value out. The lines are those of vLLM 0.32 (CPU provoked, CUDA from its
source), PyTorch, safetensors and the operating system.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

GIB = 2**30
# The same error comes three times (core, core's trace, API server); more lines than this say nothing new.
LAST_LINES = 12
# <signal.h>; the kernel's OOM killer sends it too.
SIGKILL = 9


class StartCode(StrEnum):
    """Why an engine did not start, or stopped. Never reused."""

    KV_TOO_SMALL = "kv_too_small"
    """The KV cache cannot hold one request of max_model_len."""
    OUT_OF_MEMORY = "out_of_memory"
    """A device or the host had too little memory at that moment."""
    PORT_IN_USE = "port_in_use"
    """The address is taken; another one is chosen."""
    MISSING_FILE = "missing_file"
    """A file of the model, its tokenizer or its template is not there."""
    BAD_ARGUMENT = "bad_argument"
    """A setting that this engine refuses."""
    NO_CHAT_TEMPLATE = "no_chat_template"
    """Chat is claimed and the model brings no template."""
    UNSUPPORTED_QUANTIZATION = "unsupported_quantization"
    """No kernel on this hardware, or no such method in this engine."""
    UNSUPPORTED_MODEL = "unsupported_model"
    """The engine does not know the architecture, or the config contradicts itself."""
    CORRUPT_WEIGHTS = "corrupt_weights"
    """A weights file is cut or broken."""
    CONTEXT_TOO_LONG = "context_too_long"
    """max_model_len is beyond what the model was made for."""
    REMOTE_CODE = "remote_code"
    """The model brings code of its own, which nobody approved."""
    DISK_FULL = "disk_full"
    """The engine could not write its caches or its log."""
    MISSING_RUNTIME = "missing_runtime"
    """The runtime's interpreter or one of its packages is not there."""
    DRIVER_FAULT = "driver_fault"
    """The device or its driver failed."""
    ENGINE_DIED = "engine_died"
    """The engine core ended although the start had succeeded."""
    KILLED = "killed"
    """Ended by a signal without a word in the log."""
    UNKNOWN = "unknown"
    """No known line."""


PERMANENT = frozenset(
    {
        StartCode.KV_TOO_SMALL,
        StartCode.MISSING_FILE,
        StartCode.BAD_ARGUMENT,
        StartCode.NO_CHAT_TEMPLATE,
        StartCode.UNSUPPORTED_QUANTIZATION,
        StartCode.UNSUPPORTED_MODEL,
        StartCode.CORRUPT_WEIGHTS,
        StartCode.CONTEXT_TOO_LONG,
        StartCode.REMOTE_CODE,
        StartCode.MISSING_RUNTIME,
    }
)

ADVICE: Mapping[StartCode, str] = {
    StartCode.KV_TOO_SMALL: "Lower max_model_len or give the KV cache more memory.",
    StartCode.OUT_OF_MEMORY: "Free memory on the device, lower gpu_memory_utilization or the KV cache size.",
    StartCode.PORT_IN_USE: "Another process holds the address; the next start takes another port.",
    StartCode.MISSING_FILE: "Verify the version's files on this node and register the version again.",
    StartCode.BAD_ARGUMENT: "Make a profile without the setting that the engine refuses.",
    StartCode.NO_CHAT_TEMPLATE: "Add a chat template to the version, or claim completions only.",
    StartCode.UNSUPPORTED_QUANTIZATION: "Choose a quantization that the runtime's probe lists for this node.",
    StartCode.UNSUPPORTED_MODEL: "Use a runtime whose engine knows this architecture, or mend the config.",
    StartCode.CORRUPT_WEIGHTS: "Fetch the version again; its manifest names the broken file.",
    StartCode.CONTEXT_TOO_LONG: "Lower max_model_len to what the model's config allows.",
    StartCode.REMOTE_CODE: "Approve the version's code, or use a version without auto_map.",
    StartCode.DISK_FULL: "Free disk space on the node.",
    StartCode.MISSING_RUNTIME: "Install the runtime on this node again.",
    StartCode.DRIVER_FAULT: "Check the device's driver log; the device is set aside until it answers again.",
    StartCode.ENGINE_DIED: "Read the last lines of the log; the start is tried again.",
    StartCode.KILLED: "Check the host's memory: the kernel's OOM killer ends processes without a word.",
    StartCode.UNKNOWN: "Read the last lines of the log.",
}


@dataclass(frozen=True, slots=True)
class StartFailure:
    """`figures` holds what the engine printed: bytes as `*_bytes`, tokens as `*_tokens`, else as printed."""

    code: StartCode
    permanent: bool
    message: str
    advice: str
    figures: Mapping[str, float | str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    code: StartCode
    pattern: re.Pattern[str]


def _rule(code: StartCode, pattern: str) -> _Rule:
    return _Rule(code, re.compile(pattern))


# The first match in this order wins: causes before consequences. Groups named *_gib become *_bytes.
_RULES: tuple[_Rule, ...] = (
    _rule(
        StartCode.KV_TOO_SMALL,
        r"max seq len \((?P<wanted_tokens>\d+)\), \(?(?P<needed_gib>[\d.]+) GiB KV cache is needed, which is "
        r"larger than the available KV cache memory \((?P<available_gib>[\d.]+) GiB\)"
        r"(?:.*?estimated maximum model length is (?P<suggested_tokens>\d+))?",
    ),
    _rule(StartCode.KV_TOO_SMALL, r"No available memory for the cache blocks"),
    _rule(
        StartCode.OUT_OF_MEMORY,
        r"OutOfMemoryError: CUDA out of memory\. Tried to allocate (?P<needed_gib>[\d.]+) GiB"
        r"(?:.*?total capacity of (?P<total_gib>[\d.]+) GiB of which (?P<free_gib>[\d.]+) GiB is free)?",
    ),
    _rule(StartCode.OUT_OF_MEMORY, r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError"),
    _rule(
        StartCode.OUT_OF_MEMORY,
        r"Free memory on device \S+ \((?P<free_gib>[\d.]+)/(?P<total_gib>[\d.]+) GiB\) on startup"
        r"(?:.*?\((?P<utilization>[\d.]+), (?P<needed_gib>[\d.]+) GiB\))?",
    ),
    _rule(
        StartCode.OUT_OF_MEMORY,
        r"Available memory on node \d+ \((?P<free_gib>[\d.]+)/(?P<total_gib>[\d.]+) GiB\) on startup is "
        r"less than desired CPU memory utilization \((?P<utilization>[\d.]+), (?P<needed_gib>[\d.]+) GiB\)",
    ),
    _rule(
        StartCode.OUT_OF_MEMORY,
        r"Available memory on node \d+ \((?P<free_gib>[\d.]+)/(?P<total_gib>[\d.]+) GiB\) on kv cache "
        r"allocation is less than requested memory for kv \((?P<needed_gib>-?[\d.]+)",
    ),
    _rule(
        StartCode.OUT_OF_MEMORY,
        r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|MemoryError",
    ),
    _rule(StartCode.DISK_FULL, r"No space left on device|Disk quota exceeded"),
    _rule(
        StartCode.CONTEXT_TOO_LONG,
        r"max_model_len \((?P<wanted_tokens>\d+)\) is greater than the derived max_model_len "
        r"\((?:max_position_embeddings|sliding_window|model_max_length)=(?P<suggested_tokens>\d+)",
    ),
    _rule(StartCode.REMOTE_CODE, r"custom code which must be executed|pass the argument `trust_remote_code"),
    _rule(StartCode.CORRUPT_WEIGHTS, r"SafetensorError: (?P<cause>.+)"),
    _rule(StartCode.CORRUPT_WEIGHTS, r"PytorchStreamReader failed|invalid load key|unexpected EOF, expected"),
    _rule(
        StartCode.UNSUPPORTED_QUANTIZATION,
        r"(?P<cause>Unknown quantization method: \S+?)[.;]|"
        r"quantization method \S+ is not supported|Cannot find the config file for (?P<method>\w+)",
    ),
    _rule(
        StartCode.UNSUPPORTED_QUANTIZATION,
        r"Failed to find a kernel that can implement|No .{0,40}ScaledMM|no kernel image|"
        r"static_scaled_fp8_quant|cpu_gemm_wna16|(?i:fp8|int4|mxfp).{0,60}(?:requires|not supported)|"
        r"[Mm]inimum capability|not supported for the current GPU",
    ),
    _rule(StartCode.NO_CHAT_TEMPLATE, r"chat template.{0,80}(?:not|must) .{0,20}(?:allowed|provide)"),
    _rule(
        StartCode.MISSING_FILE,
        r"Cannot find any model weights with [`'\"](?P<path>[^`'\"]+)|"
        r"Invalid repository ID or local directory specified: '(?P<folder>[^']+)'|"
        r"Repo id must be in the form [^:]*: '(?P<repository>[^']+)'|"
        r"chat template string \((?P<template>[^)]+)\) appears path-like|"
        r"FileNotFoundError: .*?'(?P<file>[^']+)'",
    ),
    _rule(StartCode.MISSING_FILE, r"Couldn't instantiate the backend tokenizer|Can't load tokenizer for"),
    _rule(
        StartCode.UNSUPPORTED_MODEL,
        r"Model architectures \['?(?P<architecture>[^'\]]*)'?\] are not supported",
    ),
    _rule(StartCode.UNSUPPORTED_MODEL, r"ValidationError: (?:Class v|V)alidation error for (?P<cause>.+)"),
    _rule(StartCode.PORT_IN_USE, r"[Aa]ddress already in use|EADDRINUSE"),
    _rule(StartCode.DRIVER_FAULT, r"CUDA error: (?P<cause>.+)|NCCL error|cuDNN error|ECC error|Xid"),
    _rule(StartCode.DRIVER_FAULT, r"No CUDA GPUs are available|CUDA driver version is insufficient"),
    _rule(StartCode.MISSING_RUNTIME, r"ModuleNotFoundError: (?P<cause>.+)|ImportError: (?P<library>.+)"),
    _rule(
        StartCode.BAD_ARGUMENT, r"error: (?P<cause>(?:unrecognized arguments|argument |ambiguous option).*)"
    ),
    _rule(StartCode.BAD_ARGUMENT, r"No common block size for (?P<cause>.+)"),
    _rule(StartCode.BAD_ARGUMENT, r"Value error, (?P<cause>.+?)(?: \[type=|$)"),
    _rule(StartCode.ENGINE_DIED, r"EngineCore encountered a fatal error|engine core exited unexpectedly"),
    _rule(StartCode.ENGINE_DIED, r"Worker proc \S+ died unexpectedly"),
)
_CALM = re.compile(r"^\(\w+ pid=\d+\) (?:INFO|DEBUG) |^INFO:")
# The first exception of an unknown kind; vLLM's own last one only points to it.
_CAUSE = re.compile(
    r"(?m)^(?:\(\w+ pid=\d+\) \w+ [^\]]*\] )?(?P<cause>[\w.]+(?:Error|Exception): (?!Engine core init).+)$"
)
_NOISE = re.compile(r"Route: |FutureWarning|Loading safetensors checkpoint shards|^\s*$|^usage: |^\s+\[")
_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:\w+ \d\d-\d\d [\d:]+ \[[^\]]+\] ?)?")


def classify_failure(
    log_text: str, *, exit_code: int | None = None, signal: int | None = None
) -> StartFailure:
    """The cause of an ended start. Exit code 0 proves nothing: an engine whose core died exits with 0."""
    lines = tuple(line for line in log_text.splitlines() if not _NOISE.search(line))
    tail = tuple(_PREFIX.sub("", line)[:400] for line in lines[-LAST_LINES:])
    whole = "\n".join(line for line in lines if not _CALM.search(line))
    for rule in _RULES:
        if found := rule.pattern.search(whole):
            return _failure(rule.code, _line_around(whole, found), figures=_figures(found), lines=tail)
    if signal is not None:
        message = f"The engine was ended by signal {signal}."
        figures: dict[str, float | str] = {"signal": signal}
        code = StartCode.KILLED if signal == SIGKILL else StartCode.UNKNOWN
        return _failure(code, message, figures=figures, lines=tail)
    if cause := _CAUSE.search(whole):
        return _failure(StartCode.UNKNOWN, cause.group("cause").strip()[:400], figures={}, lines=tail)
    words = "without an exit code" if exit_code is None else f"with exit code {exit_code}"
    return _failure(StartCode.UNKNOWN, f"The engine ended {words}.", figures={}, lines=tail)


def make_failure(code: StartCode, message: str, **figures: float | str) -> StartFailure:
    """A failure that somebody else than the log tells of (warm-up, a check before the launch)."""
    return _failure(code, message, figures=figures, lines=())


def _failure(
    code: StartCode, message: str, *, figures: Mapping[str, float | str], lines: tuple[str, ...]
) -> StartFailure:
    advice = ADVICE[code]
    if suggested := figures.get("suggested_tokens"):
        advice = f"Set max_model_len to at most {suggested:,.0f}, or give the KV cache more memory."
        if code is StartCode.CONTEXT_TOO_LONG:
            advice = f"Set max_model_len to at most {suggested:,.0f}: the model was not made for more."
    return StartFailure(code, code in PERMANENT, message, advice, dict(figures), lines)


def _figures(found: re.Match[str]) -> dict[str, float | str]:
    figures: dict[str, float | str] = {}
    for name, text in found.groupdict().items():
        if text is None:
            continue
        if name.endswith("_gib"):
            figures[f"{name.removesuffix('_gib')}_bytes"] = round(float(text) * GIB)
        elif name.endswith("_tokens"):
            figures[name] = int(text)
        elif name == "utilization":
            figures["utilization_ratio"] = float(text)
        else:
            figures[name] = text.strip()[:200]
    return figures


def _line_around(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    line = text[start : end if end >= 0 else len(text)]
    return _PREFIX.sub("", line).strip()[:400]
