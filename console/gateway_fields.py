"""What the gateway's settings are called and do, for pages and API alike; and the API's fields made from them."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import Any, Final

from django.utils.translation import gettext_lazy
from rest_framework import serializers

from pool.domain.gateway_settings import SWITCHES, LaneSettings, ModelSettings, number_bounds

_ = gettext_lazy
Kind = type[LaneSettings] | type[ModelSettings]


@dataclass(frozen=True)
class Words:
    label: Any
    """Lazy, so that each reader gets it in his language."""
    hint: Any = ""
    unit: str = ""


LANE_WORDS: Final[dict[str, Words]] = {
    "concurrency": Words(
        _("At once per replica"), _("Where it starts; adaptive lanes move it from there."), "requests"
    ),
    "adaptive": Words(_("Adaptive"), _("Finds its own level from the TTFT target.")),
    "ttft_target_ms": Words(_("TTFT target"), _("Median that admission steers to."), "ms"),
    "weight": Words(_("Weight"), _("Share of a replica that serves several lanes.")),
    "queue_limit": Words(
        _("Queue limit"), _("Per release, over all gateways; one more gets queue_full."), "requests"
    ),
    "queue_timeout_s": Words(_("Longest wait"), _("Then the caller gets queue_timeout."), "s"),
    "requests_per_min": Words(_("Requests per minute"), _("Over all gateways. Empty: no limit.")),
    "tokens_per_min": Words(
        _("Tokens per minute"), _("Prompt and answer, over all gateways. Empty: no limit.")
    ),
    "connect_timeout_s": Words(_("Connect"), _("To an engine."), "s"),
    "first_byte_timeout_s": Words(_("First byte"), _("Covers the engine's queue and the prefill."), "s"),
    "idle_timeout_s": Words(_("Idle"), _("Between two pieces of a stream."), "s"),
    "total_timeout_s": Words(_("Whole request"), _("From arrival to end, retries included."), "s"),
    "late_gap_ms": Words(_("Late gap"), _("Three gaps over it in a row mark a stream late."), "ms"),
    "late_gap_policy": Words(_("Late streams"), _("mark: counted. end: cut with stream_late.")),
    "pacing_ms": Words(_("Pacing"), _("Least gap between two events after the first. 0: at once."), "ms"),
    "group_events": Words(_("Group"), _("Events after the first leave in groups of so many."), "events"),
}
MODEL_WORDS: Final[dict[str, Words]] = {
    "requests_per_min": Words(_("Requests per minute"), _("All lanes, over all gateways. Empty: no limit.")),
    "tokens_per_min": Words(_("Tokens per minute"), _("Prompt and answer, all lanes. Empty: no limit.")),
    "kv_share_ratio": Words(
        _("Share of one request"),
        _("Of a replica's KV tokens. More counts as long, one at a time."),
        "%",
    ),
    "oversize": Words(_("A larger one"), _("serve as long: waits for its turn. refuse: an error.")),
    "kv_reserve_ratio": Words(_("KV reserve"), _("KV tokens that admission leaves free."), "%"),
    "vip_reserve_ratio": Words(_("Reserve for vip"), _("Slots that no other tier gets."), "%"),
    "burst_ratio": Words(_("Burst of vip"), _("Slots over the limit, for a moment."), "%"),
    "watermark_warn_ratio": Words(_("Warn"), _("KV blocks in use. Ends 5 points lower."), "%"),
    "watermark_long_ratio": Words(_("No new long"), _("Long requests wait from here on."), "%"),
    "watermark_short_ratio": Words(_("Only short and vip"), _("The rest waits or is shed."), "%"),
    "growth_ratio": Words(
        _("Growth of pending requests"),
        _("Over 10 minutes and with more than 8 waiting: batch is refused."),
        "%",
    ),
    "affinity": Words(_("Prefix affinity"), _("A common beginning goes where its KV blocks probably are.")),
    "retry_ratio": Words(_("Retry budget"), _("Retries in relation to the last minute's requests."), "%"),
    "cache_s": Words(_("Keep answers for"), _("To equal deterministic requests. 0: none is kept."), "s"),
    "coalesce": Words(_("Coalesce"), _("Equal deterministic requests at the same time share one answer.")),
    "truncation": Words(_("Prompts too long"), _("off: 400. Else the middle is cut and a header says so.")),
    "control_characters": Words(_("Control characters"), _("In the text of messages.")),
    "special_tokens": Words(_("Special tokens"), _("A model's markers, such as <|im_start|>, in user text.")),
    "max_messages": Words(_("Most messages"), _("Of one request; more are refused."), "messages"),
    "white_space": Words(_("Endless white space"), _("Long runs of it.")),
    "absurd_parameters": Words(_("Absurd parameters"), _("n, max_tokens, stop, schemas beyond any use.")),
}


def words_of(kind: Kind, name: str) -> Words:
    known = LANE_WORDS if kind is LaneSettings else MODEL_WORDS
    return known.get(name) or Words(name.replace("_", " ").capitalize())


def default_of(kind: Kind, name: str) -> Any:
    return getattr(kind(), name)


def api_fields(kind: Kind, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A serializer field for each setting; none is required, so that what is absent can be told from a default."""
    return {one.name: _api_field(kind, one) for one in fields(kind) if one.name not in without}


def _api_field(kind: Kind, one: Field[Any]) -> serializers.Field[Any, Any, Any, Any]:
    words = words_of(kind, one.name)
    shown = (
        "null"
        if one.default is None
        else str(one.default).lower()
        if isinstance(one.default, bool)
        else one.default
    )
    help_text = f"{words.label}. {words.hint} Default: {shown}."
    if one.name in SWITCHES:
        return serializers.ChoiceField(choices=SWITCHES[one.name], required=False, help_text=help_text)
    if one.type == "bool":
        return serializers.BooleanField(required=False, help_text=help_text)
    low, high = number_bounds(one.name)
    allow_null = str(one.type).endswith("None")
    if str(one.type).startswith("int"):
        return serializers.IntegerField(
            min_value=int(low),
            max_value=int(high),
            required=False,
            allow_null=allow_null,
            help_text=help_text,
        )
    return serializers.FloatField(min_value=low, max_value=high, required=False, help_text=help_text)
