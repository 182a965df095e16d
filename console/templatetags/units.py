"""Numbers for people: bytes, tokens, rates, times and shares. Unknown is shown as unknown, never as 0."""

from __future__ import annotations

from django import template

register = template.Library()
UNKNOWN = "—"
