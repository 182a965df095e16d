"""Where one request's time went, as bars on the clock of the gateway. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SMALLEST_S = 0.0005
"""What nobody can see is no bar of its own."""
_PARTS = ("tokenize", "queue", "first_byte", "decode", "stream")
_WITHIN = (("engine_queue", "engine_queue_s"), ("engine_prefill", "engine_prefill_s"))


@dataclass(frozen=True, slots=True)
class Span:
    """`start_s` counts from the request's arrival. `within`: the part that it explains, "" at the top."""

    name: str
    start_s: float
    length_s: float
    within: str = ""

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


def lay_out(times: Mapping[str, float | None], *, e2e_s: float | None) -> tuple[Span, ...]:
    """`times`: `<part>_s` and `engine_<part>_s` in seconds; None = not known, then there is no bar.

    The gateway's parts follow each other; what is left of the whole is `other`. The engine's own times stand below
    the part that they explain, on its clock, which starts when the request reaches it.
    """
    spans: list[Span] = []
    at_s = 0.0
    for part in _PARTS:
        length_s = times.get(f"{part}_s")
        if length_s is None or length_s < SMALLEST_S:
            continue
        spans.append(Span(part, at_s, length_s))
        if part == "first_byte":
            spans += _explain(times, at_s, length_s)
        if part == "decode":
            engine_s = times.get("engine_decode_s")
            if engine_s is not None and engine_s >= SMALLEST_S:
                spans.append(Span("engine_decode", at_s, engine_s, "decode"))
        at_s += length_s
    if e2e_s is not None and e2e_s - at_s >= SMALLEST_S:
        spans.append(Span("other", at_s, e2e_s - at_s))
    return tuple(spans)


def _explain(times: Mapping[str, float | None], start_s: float, length_s: float) -> list[Span]:
    """Queue and prefill inside the engine, and what lies between its clock and the gateway's."""
    spans: list[Span] = []
    at_s = start_s
    for name, field in _WITHIN:
        engine_s = times.get(field)
        if engine_s is None:
            continue
        if engine_s >= SMALLEST_S:
            spans.append(Span(name, at_s, engine_s, "first_byte"))
        at_s += engine_s
    gap_s = start_s + length_s - at_s
    if at_s > start_s and gap_s >= SMALLEST_S:
        spans.append(Span("engine_gap", at_s, gap_s, "first_byte"))
    return spans
