"""What an operator sets of the gateway, per lane and per model: values, defaults and their rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

from pool.domain.errors import PoolError

SWITCHES: dict[str, tuple[str, ...]] = {
    "late_gap_policy": ("mark", "end"),
    "oversize": ("serve_as_long", "refuse"),
    "control_characters": ("off", "strip", "refuse"),
    "special_tokens": ("off", "neutralise", "refuse"),
    "white_space": ("off", "collapse", "refuse"),
    "absurd_parameters": ("off", "clamp", "refuse"),
    "truncation": ("off", "message", "paragraph"),
}
"""Settings that take one of a few words."""


class InvalidGatewaySettings(PoolError):
    """`details.field` names the first that is wrong."""

    code: ClassVar[str] = "invalid_gateway_settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """Of one lane. Lengths of time are in seconds but where the name says otherwise."""

    concurrency: int = 32
    """Requests at once per replica at the start; `adaptive` moves it from there."""
    adaptive: bool = True
    """Concurrency follows the lane's TTFT target."""
    ttft_target_ms: int = 300
    """Median that admission steers to."""
    weight: int = 1
    """Share of a replica that serves several lanes."""
    queue_limit: int = 128
    """Waiting requests per release, over all gateways in equal parts; one more is refused (`queue_full`)."""
    queue_timeout_s: float = 30.0
    """A request that waited longer is refused (`queue_timeout`)."""
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 60.0
    """Between two pieces of a stream."""
    total_timeout_s: float = 1800.0
    """From the request's arrival to its end, whatever happens in between."""
    late_gap_ms: int = 150
    """A gap between two events of a stream over this is late; three in a row mark the stream."""
    late_gap_policy: str = "mark"
    pacing_ms: int = 0
    """Events after the first leave at least so far apart; 0 = at once."""
    group_events: int = 1
    """Events after the first leave in groups of so many, or when `pacing_ms` is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Of one model, in all lanes. Ratios are 0 to 1."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    kv_share_ratio: float = 0.30
    """A request that holds more of a replica's KV tokens counts as long and runs alone of its kind there."""
    oversize: str = "serve_as_long"
    kv_reserve_ratio: float = 0.20
    """Part of the KV tokens that admission leaves free."""
    vip_reserve_ratio: float = 0.20
    """Part of the slots that only `vip` gets."""
    burst_ratio: float = 0.05
    """Slots over the limit that `vip` may take for a burst."""
    watermark_warn_ratio: float = 0.70
    watermark_long_ratio: float = 0.85
    """From here on no new long request."""
    watermark_short_ratio: float = 0.95
    """From here on only the shortest lane and `vip`."""
    growth_ratio: float = 0.15
    """Growth of pending requests over 10 minutes that opens the lane's breaker."""
    affinity: bool = True
    """Requests with a common beginning go where its KV blocks probably are."""
    retry_ratio: float = 0.10
    """Retries in relation to requests, over the last minute."""
    cache_s: float = 0.0
    """Answers to deterministic requests are kept so long; 0 = not."""
    coalesce: bool = False
    """Equal deterministic requests at the same time share one answer."""
    truncation: str = "off"
    """What is cut from the middle of a prompt that is too long, instead of refusing it."""
    control_characters: str = "strip"
    special_tokens: str = "neutralise"
    white_space: str = "collapse"
    absurd_parameters: str = "refuse"
    max_messages: int = 2048
    """Messages of a conversation, parts of a message, and texts of a batch; more are refused."""


S = TypeVar("S", LaneSettings, ModelSettings)

_LARGEST_WHOLE = 2**31 - 1
_LONGEST_S = 86_400.0


def read_lane_settings(given: Mapping[str, Any]) -> LaneSettings:
    """What is absent has its default. Raises InvalidGatewaySettings."""
    return _read(LaneSettings, given)


def read_model_settings(given: Mapping[str, Any]) -> ModelSettings:
    """What is absent has its default. Raises InvalidGatewaySettings."""
    settings = _read(ModelSettings, given)
    marks = (settings.watermark_warn_ratio, settings.watermark_long_ratio, settings.watermark_short_ratio)
    if not 0.05 < marks[0] < marks[1] < marks[2] <= 1:
        raise InvalidGatewaySettings(
            "The watermarks must rise from warn over long to short, between 0.05 and 1.",
            field="watermark_long_ratio",
        )
    return settings


def changed_settings(settings: LaneSettings | ModelSettings) -> dict[str, Any]:
    """Only what differs from the default."""
    usual = asdict(type(settings)())
    return {name: value for name, value in asdict(settings).items() if value != usual[name]}


def number_bounds(name: str) -> tuple[float, float]:
    """The smallest and the largest value of a setting that is a number."""
    if name.endswith("_ratio"):
        return 0.0, 10.0 if name in ("growth_ratio", "retry_ratio") else 1.0
    if name.endswith("_s"):
        return (0.0 if name == "cache_s" else 0.05), _LONGEST_S
    return (0 if name in ("pacing_ms", "queue_limit") else 1), _LARGEST_WHOLE


def _read(kind: type[S], given: Mapping[str, Any]) -> S:
    known = {one.name: one for one in fields(kind)}
    for name in given:
        if name not in known:
            raise InvalidGatewaySettings(f"There is no setting {name!r}.", field=name)
    return kind(**{name: _check(name, str(known[name].type), value) for name, value in given.items()})


def _check(name: str, kind: str, value: Any) -> Any:
    if kind == "str":
        if value not in SWITCHES[name]:
            raise _wrong(name, f"is one of {', '.join(SWITCHES[name])}")
        return value
    if kind == "bool":
        if not isinstance(value, bool):
            raise _wrong(name, "is true or false")
        return value
    if value is None and kind.endswith("None"):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "is a number")
    return _check_number(name, kind, value)


def _check_number(name: str, kind: str, value: float) -> float:
    low, high = number_bounds(name)
    if not low <= value <= high:
        raise _wrong(name, f"is between {low:g} and {high:g}")
    if kind.startswith("float"):
        return float(value)
    if value != int(value):
        raise _wrong(name, "is a whole number")
    return int(value)


def _wrong(name: str, rule: str) -> InvalidGatewaySettings:
    return InvalidGatewaySettings(f"The setting {name!r} {rule}.", field=name)
