"""A figure of a benchmark as one JSON line on stdout; progress goes to stderr."""

from __future__ import annotations

import json
import sys


def print_figure(
    bench: str,
    figure: str,
    value: float | None,
    *,
    unit: str,
    against: str | None = None,
    limit: float | None = None,
) -> bool:
    """True when the value is within the limit, or has none. None: it could not be measured, which is not ok."""
    line: dict[str, object] = {"bench": bench, "figure": figure, "value": value, "unit": unit}
    if against is not None:
        line["against"] = against
    good = value is not None
    if limit is not None:
        good = value is not None and value <= limit
        line |= {"limit": limit, "ok": good}
    print(json.dumps(line), flush=True)
    return good


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
