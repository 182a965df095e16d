"""The fault switches of the fake engine, and how `--switch name=value` sets them."""

from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

INFINITE = float("inf")


@dataclass
class Switches:
    """Counts are of chunks (one token each) from 0; times in seconds; None = off."""

    # Start and end of life.
    load_s: float = 0.0
    health_from: str = (
        "load"  # bind: 200 at once · load: nothing listens before · warm: 503 until a completion
    )
    first_s: float = 0.0  # extra delay of the first completion
    start_fail: str = ""  # kv, oom, port, corrupt: a fatal line like vLLM's, then exit
    fail_starts: int = 0  # only this many starts fail (counted in `ledger`.starts); 0 = all of them
    exit_code: int = 1
    fork_child: bool = False  # a grandchild that keeps a line in `ledger`, as a core keeps GPU memory
    ledger: str = ""
    ledger_bytes: int = 1 << 30
    ignore_term: bool = False
    term_mode: str = "abort"  # abort: streams end with finish_reason abort · drain: they finish

    # Completions.
    hang_after: int | None = None  # completions after so many never answer
    stall_at: int | None = None
    die_at: int | None = None
    close_at: int | None = None
    bad_json_at: int | None = None
    error_at: int | None = None  # the error event of a dead core, then [DONE]: what vLLM does
    cut: tuple[int, ...] = ()  # flush at these byte offsets of the reply's body
    usage: str = "last"  # none, null_each, zero_each, last, last_no_choices; always: also when not asked for
    cached: str = "known"  # known: tokens of the prompt's beginning that came before · zero · untold
    poison: str = ""  # exit(1) when the prompt holds it
    err: int | None = (
        None  # every completion answers this; a prompt with `ERR:429` does so without the switch
    )
    err_s: float = 0.0  # how long it takes to say so
    dead_core: bool = False  # what vLLM's API says after its core died: 500 to completions, 503 at /health
    variant: str = ""  # garbage: nonsense text

    # Size and speed.
    text: str = "The capital of France is Paris ."
    chunks: int | None = None  # None = one per word of `text`, or max_tokens if that is less
    gap_s: float = 0.0
    ms_per_ktok: float = 0.0
    serial_prefill: bool = False
    max_ctx: int = 8192
    slots: int = 256

    # Identity and telemetry.
    instance_id: str = "fake-1"
    model: str = "m"
    metrics: str = "v1"  # v0, v1, renamed, nan, partial, 500, slow, reset
    abort_log: str = ""

    def set(self, name: str, value: str) -> None:
        """Raises ValueError for an unknown switch or a value of another type."""
        hints = get_type_hints(Switches)
        if name not in hints:
            raise ValueError(f"no switch {name}; there are {', '.join(field.name for field in fields(self))}")
        setattr(self, name, _parse(hints[name], value))


def _parse(kind: Any, value: str) -> object:
    if kind is bool:
        return value.lower() in ("1", "true", "yes", "on", "")
    if kind == tuple[int, ...]:
        return tuple(int(offset) for offset in value.split(",") if offset)
    if int in get_args(kind):
        return int(value) if value else None
    return kind(value)
