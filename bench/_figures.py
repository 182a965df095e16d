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
    at_least: bool = False,
) -> bool:
    """True when the value is within the limit, or has none. None: it could not be measured, which is not ok.

    The limit is the highest good value, or with `at_least` the lowest.
    """
    line: dict[str, object] = {"bench": bench, "figure": figure, "value": value, "unit": unit}
    if against is not None:
        line["against"] = against
    good = value is not None
    if limit is not None:
        good = value is not None and (value >= limit if at_least else value <= limit)
        line |= {"limit": limit, "ok": good}
    print(json.dumps(line), flush=True)
    return good


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
