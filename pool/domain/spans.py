"""Lengths of time in words, rounded as people say them. Pure."""

from __future__ import annotations


def span_in_words(seconds: float) -> str:
    """“1 s” at least; whole seconds below 2 min, whole minutes below 2 h."""
    whole = max(1, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{round(whole / 60)} min" if whole < 7200 else f"{round(whole / 3600)} h"
