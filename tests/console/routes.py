"""All routes of the console with a path that fits each, for tests that ask every one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from console.access import Right

SAMPLES = {
    "name": "sample",
    "identity": "999999999",
    "request_id": "sample",
    "user_name": "sample",
    "number": "1",
    "int": "1",
    "slug": "sample",
}


@dataclass(frozen=True)
class Route:
    path: str
    view: type[Any] | None
    """The class of a class-based view."""
    rights: Mapping[str, Right]

    @property
    def is_catch_all(self) -> bool:
        return self.path in ("/api/", "/static/")


def list_routes() -> list[Route]:
    return [
        Route(f"/{path}", view, getattr(view, "rights", {}) if view else {})
        for path, view in _walk(get_resolver().url_patterns, "")
    ]


def _walk(patterns: list[Any], prefix: str) -> Iterator[tuple[str, type[Any] | None]]:
    for pattern in patterns:
        path = prefix + _fill(str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "view_class", None) or getattr(pattern.callback, "cls", None)
            yield path, view


def _fill(pattern: str) -> str:
    return re.sub(
        r"<(?:(\w+):)?\w+>", lambda match: SAMPLES.get(match[1] or "slug", "sample"), pattern
    ).strip("^$")
