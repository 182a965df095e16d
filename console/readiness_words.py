"""Readiness to go back in one line, for pages and API alike."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from pool.domain.readiness import State, in_words
from pool.queries.readiness import Readiness

MOST_PERCENT = 999


def readiness_words(told: Readiness) -> str:
    """“back to release 6 in 0.1 s: warm, capacity 120 %”."""
    if told.state is State.NOWHERE:
        return _("nowhere to go back to: %(reason)s") % {"reason": told.reason}
    if told.state is State.IMPOSSIBLE:
        return _("no way back to release %(release)d: %(reason)s") % {
            "release": told.release,
            "reason": told.reason,
        }
    words = _head(told) % {"release": told.release, "time": in_words(told.seconds or 0.0), "why": _why(told)}
    if not told.gateways_silent:
        return words
    silent = ngettext(
        "%(count)d gateway is silent and may send on", "%(count)d gateways are silent and may send on",
        told.gateways_silent,
    ) % {"count": told.gateways_silent}  # fmt: skip
    return f"{words}; {silent}"


def _head(told: Readiness) -> str:
    if told.seconds is None:
        return _("back to release %(release)d in an unknown time: %(why)s")
    if told.applies_s is None and told.state is State.WARM:
        return _("back to release %(release)d in at most %(time)s: %(why)s")
    return _("back to release %(release)d in %(time)s: %(why)s")


def _why(told: Readiness) -> str:
    word = {State.WARM: _("warm"), State.STARTING: _("starting"), State.COLD: _("cold")}[told.state]
    parts = [word, told.reason, _capacity(told) if told.replicas_ready else ""]
    if told.state is State.STARTING and told.start_s is not None:
        parts.insert(2, _("measured start %(time)s") % {"time": in_words(told.start_s)})
    return ", ".join(part for part in parts if part)


def _capacity(told: Readiness) -> str:
    if told.capacity_ratio is None:
        return _("capacity unknown without requests")
    percent = round(100 * told.capacity_ratio)
    if percent > MOST_PERCENT:
        return _("capacity over %(percent)d %%") % {"percent": MOST_PERCENT}
    return _("capacity %(percent)d %%") % {"percent": percent}
