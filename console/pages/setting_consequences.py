"""What changed gateway settings of a model would do, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from console.gateway_fields import words_of
from pool.domain.gateway_settings import ModelSettings

Consequence = dict[str, str]


def setting_consequences(before: ModelSettings, changes: Mapping[str, Any]) -> list[Consequence]:
    """One line per changed setting, with a warning where callers will notice."""
    return [_consequence(name, getattr(before, name), after) for name, after in changes.items()]


def shown_value(name: str, value: Any) -> str:
    if value is None:
        return _("none")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, str):
        return value
    if name.endswith("_ratio"):
        return f"{value * 100:g} %"
    unit = words_of(ModelSettings, name).unit
    return f"{value:,g} {unit}".strip()


def _consequence(name: str, before: Any, after: Any) -> Consequence:
    line = f"{words_of(ModelSettings, name).label}: {shown_value(name, before)} → {shown_value(name, after)}."
    warning = _warning(name, after)
    return {"state": "warn" if warning else "busy", "text": f"{line} {warning}".strip()}


def _warning(name: str, after: Any) -> str:
    """What a caller will notice; empty where nobody should."""
    if after == "refuse":
        return _("Callers that send such requests get an error from now on.")
    if name in ("requests_per_min", "tokens_per_min") and after is not None:
        return _("Callers over it get 429 rate_limited with the time to wait.")
    if name == "cache_s" and after > 0:
        return _("A caller may get an answer that was made for an earlier, equal request.")
    if name == "truncation" and after != "off":
        return _(
            "Models answer from prompts with a cut middle; x-sluice-truncated says how many tokens went."
        )
    if name == "retry_ratio" and after == 0:
        return _("A dead engine then costs its callers their answers.")
    if name == "special_tokens" and after == "off":
        return _("User text can then pose as another role of the conversation.")
    if name == "affinity" and after is False:
        return _("Common beginnings are computed again on each replica: prefill rises.")
    return ""
