"""States as colour and word: which tone a phase has and how it is called."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

OK, BUSY, WARN, BAD, IDLE = "ok", "busy", "warn", "bad", "idle"

_REPLICA: Final = {
    "pending": IDLE,
    "starting": BUSY,
    "loading": BUSY,
    "warming": BUSY,
    "ready": OK,
    "draining": WARN,
    "stopped": IDLE,
    "failed": BAD,
}
_NODE: Final = {"ready": OK, "cordoned": WARN, "draining": WARN, "unreachable": BAD, "replaced": BAD}
_PRESENCE: Final = {"wanted": IDLE, "verifying": BUSY, "present": OK, "absent": IDLE, "broken": BAD}
_INTENT: Final = {"pending": IDLE, "claimed": BUSY, "done": OK, "failed": BAD, "void": IDLE}

_WORDS: Final = (
    gettext_noop("pending"),
    gettext_noop("starting"),
    gettext_noop("loading"),
    gettext_noop("warming"),
    gettext_noop("ready"),
    gettext_noop("draining"),
    gettext_noop("stopped"),
    gettext_noop("failed"),
    gettext_noop("cordoned"),
    gettext_noop("unreachable"),
    gettext_noop("replaced"),
    gettext_noop("wanted"),
    gettext_noop("verifying"),
    gettext_noop("present"),
    gettext_noop("absent"),
    gettext_noop("broken"),
    gettext_noop("claimed"),
    gettext_noop("done"),
    gettext_noop("void"),
)


_ROLLOUT_TONES = {
    "preparing": BUSY,
    "warming": BUSY,
    "stepping": BUSY,
    "holding": OK,
    "promoted": OK,
    "rolling_back": WARN,
    "rolled_back": WARN,
    "paused": WARN,
    "failed": BAD,
}


def replica_tone(phase: str) -> str:
    return _REPLICA.get(phase, IDLE)


def node_tone(phase: str) -> str:
    return _NODE.get(phase, IDLE)


def presence_tone(phase: str) -> str:
    return _PRESENCE.get(phase, IDLE)


def intent_tone(phase: str) -> str:
    return _INTENT.get(phase, IDLE)


def rollout_tone(phase: str) -> str:
    return _ROLLOUT_TONES.get(phase, IDLE)


def word(phase: str) -> str:
    """The phase as shown; phases are the glossary's words, so English shows them as they are."""
    return _(phase) if phase in _WORDS else phase


def count_tone(*, ready: int, wanted: int, failed: int = 0) -> str:
    """Of a group that should have `wanted` ready members."""
    if wanted and not ready:
        return BAD
    if failed or ready < wanted:
        return WARN
    return OK if wanted else IDLE
