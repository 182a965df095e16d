"""Numbers for people: bytes, tokens, rates, times and shares. Unknown is shown as unknown, never as 0."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django import template
from django.utils import timezone
from django.utils.translation import gettext as _

register = template.Library()
UNKNOWN = "—"
KIB = 1024
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@register.filter("bytes")
def format_bytes(size: float | None) -> str:
    """Three significant digits: `269 MB` is told as `257 MiB`, a device as `79.6 GiB`."""
    if not isinstance(size, int | float):
        return UNKNOWN
    value, unit = float(size), 0
    while abs(value) >= KIB and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / KIB, unit + 1
    digits = 0 if unit == 0 or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {_BYTE_UNITS[unit]}"


@register.filter("gib")
def format_gib(size: float | None) -> str:
    """Always GiB, so that a column of devices can be compared by eye."""
    return UNKNOWN if size is None else f"{size / KIB**3:,.1f}"


@register.filter("count")
def format_count(number: float | None) -> str:
    return UNKNOWN if not isinstance(number, int | float) else f"{number:,.0f}"


@register.filter("short")
def format_short(number: float | None) -> str:
    """Parameters and the like: `134.5 M`, `7.6 B`."""
    if not isinstance(number, int | float):
        return UNKNOWN
    for edge, word in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= edge:
            return f"{number / (1e3 if word == 'k' else edge):.3g} {word}"
    return f"{number:,.0f}"


@register.filter("share")
def format_share(ratio: float | None) -> str:
    if not isinstance(ratio, int | float):
        return UNKNOWN
    return f"{ratio * 100:.0f} %" if ratio * 100 >= 10 or ratio == 0 else f"{ratio * 100:.1f} %"


@register.filter("ms")
def format_ms(seconds: float | None) -> str:
    """A short time that is kept in seconds: `84 ms`, `1.24 s`."""
    if not isinstance(seconds, int | float):
        return UNKNOWN
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


@register.filter("lasting")
def format_duration(seconds: float | timedelta | None) -> str:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if not isinstance(seconds, int | float):
        return UNKNOWN
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def format_age(at: datetime | None, *, now: datetime | None = None) -> str:
    """Coarse on purpose: an age that is read at a glance and does not jump. JavaScript keeps it current."""
    if at is None:
        return UNKNOWN
    seconds = int(((now or timezone.now()) - at).total_seconds())
    if seconds < 2:
        return _("now")
    for edge, size, word in ((100, 1, "s"), (100 * 60, 60, "min"), (49 * 3600, 3600, "h")):
        if seconds < edge:
            return _("%(number)d %(unit)s ago") % {"number": seconds // size, "unit": word}
    return _("%(number)d %(unit)s ago") % {"number": seconds // _DAY, "unit": "d"}


@register.filter("instant")
def format_instant(at: datetime | None) -> str:
    return UNKNOWN if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def to_iso(at: datetime | None) -> str:
    """What `<time datetime>` holds; empty when unknown."""
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str | datetime | None) -> datetime | None:
    if isinstance(text, datetime) or text is None:
        return text
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
