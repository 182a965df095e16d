"""The decision matrix: what a prompt's length leads to in concurrency, KV cache and precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from console.templatetags.units import format_bytes, format_count
from pool.queries.lanes import LaneRow, LaneUse


@dataclass(frozen=True)
class MatrixRow:
    use: LaneUse
    range: str
    """Of prompt tokens, in words."""
    concurrency: int
    share: str
    """Of a busy shared replica, by weight."""
    fits: str
    largest: str


def lane_matrix(lanes: Sequence[LaneRow], uses: Sequence[LaneUse]) -> list[MatrixRow]:
    lows = {lane.name: low for lane, low in zip(lanes, _lows(lanes), strict=True)}
    total = sum(lane.weight for lane in lanes)
    by_name = {lane.name: lane for lane in lanes}
    return [
        MatrixRow(
            use=use,
            range=range_words(lows[use.lane], by_name[use.lane].max_prompt_tokens),
            concurrency=by_name[use.lane].concurrency,
            share=f"{round(100 * by_name[use.lane].weight / total)} %",
            fits=_fits(use),
            largest=_largest(by_name[use.lane], use),
        )
        for use in uses
        if use.lane in by_name
    ]


def range_words(low: int, edge: int | None) -> str:
    if edge is None:
        return _("from %(low)s tokens") % {"low": format_count(low)}
    return _("%(low)s to %(high)s tokens") % {"low": format_count(low), "high": format_count(edge - 1)}


def _lows(lanes: Sequence[LaneRow]) -> list[int]:
    return [0, *(lane.max_prompt_tokens or 0 for lane in lanes[:-1])]


def _fits(use: LaneUse) -> str:
    if use.kv_tokens is None or use.context_tokens is None:
        return ""
    return _("%(number).1f full contexts") % {"number": use.kv_tokens / use.context_tokens}


def _largest(lane: LaneRow, use: LaneUse) -> str:
    longest = min((n for n in (lane.max_prompt_tokens, use.context_tokens) if n is not None), default=None)
    if longest is None or use.kv_bytes_per_token is None:
        return ""
    return _("%(size)s the longest") % {"size": format_bytes(longest * use.kv_bytes_per_token)}
