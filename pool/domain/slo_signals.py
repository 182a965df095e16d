"""One SLO's watched values from what was counted, and the report of them that pages show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from pool.domain.alerting import Level, Limits, Reading, Signal
from pool.domain.burn import BUDGET_PERIOD, WINDOWS, Count, budget_left, burn_rate, read_burn
from pool.domain.slo import (
    ALLOWED_SLOW,
    QUANTILES,
    SHARES,
    SloSettings,
    Window,
    choose_window,
    count_slower,
    hold_limits,
    is_peak,
    read_long_ratio,
    read_quantile,
    ttft_limits,
)

MINUTE, FIVE, FIFTEEN = timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15)
HOUR: Final = timedelta(hours=1)
OBJECTIVES: Final = (*ALLOWED_SLOW, *SHARES)
BURN_LIMITS: Final[Mapping[Level, float]] = {window.level: window.rate for window in WINDOWS}


@dataclass(frozen=True, slots=True)
class SloRef:
    """Empty parts of the scope = all."""

    id: int
    model: str
    lane: str
    tier: str
    label: str
    settings: SloSettings
    counted_until: datetime | None = None
    """Spans before it are complete."""
    held_until: datetime | None = None

    @property
    def subject(self) -> str:
        return "/".join((self.model, self.lane or "*", self.tier or "*", self.label or "*"))


@dataclass(frozen=True, slots=True)
class Facts:
    """`recent`: of the last 1, 5 and 15 minutes. `counts`: by length of time and objective, over the same and over
    longer ones, up to the budget's period."""

    now: datetime
    recent: Mapping[timedelta, Window]
    counts: Mapping[timedelta, Mapping[str, Count]]
    by_hour: Sequence[float | None] = field(default=(None,) * 24)


def list_signals(slo: SloRef, facts: Facts) -> tuple[list[Signal], dict[str, Any]]:
    """The signals, and the report."""
    burns = dict(_read_burns(slo.settings, facts))
    span, quantiles = _read_quantiles(slo.settings, burns.get("ttft_p99"), facts)
    about = {
        "window_s": span.total_seconds(),
        "from": (facts.now - span).isoformat(),
        "to": facts.now.isoformat(),
    }
    signals = [
        *_quantile_signals(slo, quantiles, about),
        *_burn_signals(slo, burns, facts),
        *_long_signals(slo, facts.recent[FIFTEEN], facts.now),
    ]
    return signals, _report(slo.settings, facts, quantiles, span=span)


def count_window(window: Window, settings: SloSettings) -> dict[str, Count]:
    """By objective: requests that kept and that broke it. Objectives without a promise are left out."""
    found = {}
    for name in OBJECTIVES:
        limit = settings.limit_of(name)
        if limit is None:
            continue
        if name in QUANTILES:
            found[name] = Count(window.ttft.count, count_slower(window.ttft, limit))
        else:
            found[name] = Count(window.requests, window.counts.get(name, 0))
    return found


def _read_burns(settings: SloSettings, facts: Facts) -> Iterator[tuple[str, Reading]]:
    for name in ("ttft_p99", *SHARES):
        allowed = settings.allowed_of(name)
        if allowed is not None:
            yield (
                name,
                read_burn(
                    lambda span, name=name: facts.counts.get(span, {}).get(name, Count()),  # type: ignore[misc]
                    allowed,
                    min_samples=settings.min_samples,
                ),
            )


def _read_quantiles(
    settings: SloSettings, burn: Reading | None, facts: Facts
) -> tuple[timedelta, dict[str, Reading]]:
    """And the length of time that they are of. The single minute of a fast burn may raise an alert sooner; while
    the usual window is the worse one, that one counts, so that changing windows is no recovery (FC-59)."""
    fastest = None if burn is None else burn.by_level.get(Level.RED)
    peak = is_peak(facts.now.hour, settings, facts.by_hour)
    usual = FIVE if peak else FIFTEEN
    span = choose_window(
        burns_fast=fastest is not None and fastest >= BURN_LIMITS[Level.RED],
        samples_last_minute=facts.recent[MINUTE].ttft.count,
        is_peak=peak,
        min_samples=settings.min_samples,
    )
    found = {one: _quantiles(settings, facts.recent[one]) for one in {span, usual}}
    worst = max(found, key=lambda one: (found[one]["ttft_p99"].value or 0.0, one))
    return worst, found[worst]


def _quantiles(settings: SloSettings, window: Window) -> dict[str, Reading]:
    return {
        name: read_quantile(window.ttft, share, min_samples=settings.min_samples)
        for name, share in QUANTILES.items()
    }


def _quantile_signals(
    slo: SloRef, readings: Mapping[str, Reading], about: Mapping[str, Any]
) -> Iterator[Signal]:
    for name, reading in readings.items():
        promise = slo.settings.limit_of(name)
        if name == "ttft_p99":
            limits = ttft_limits(slo.settings)
        else:
            limits = hold_limits(slo.settings, {} if promise is None else {Level.YELLOW: promise})
        if limits.enter:
            yield _signal(slo, name, reading, limits, {"unit": "s", "promise": promise, **about})


def _burn_signals(slo: SloRef, readings: Mapping[str, Reading], facts: Facts) -> Iterator[Signal]:
    for name, reading in readings.items():
        about = {
            "unit": "burn",
            "allowed": slo.settings.allowed_of(name),
            "promise": slo.settings.limit_of(name),
            "window_s": HOUR.total_seconds(),
            "from": (facts.now - HOUR).isoformat(),
            "to": facts.now.isoformat(),
        }
        limits = hold_limits(slo.settings, BURN_LIMITS)
        yield _signal(slo, f"{name}_burn", reading, limits, about)


def _long_signals(slo: SloRef, window: Window, now: datetime) -> Iterator[Signal]:
    limit = slo.settings.long_ttft_ratio
    if limit is not None:
        reading = read_long_ratio(window, min_samples=slo.settings.min_samples)
        about = {
            "unit": "ratio", "promise": limit, "window_s": FIFTEEN.total_seconds(),
            "from": (now - FIFTEEN).isoformat(), "to": now.isoformat(),
        }  # fmt: skip
        yield _signal(slo, "long_ttft", reading, hold_limits(slo.settings, {Level.YELLOW: limit}), about)


def _signal(slo: SloRef, rule: str, reading: Reading, limits: Limits, about: Mapping[str, Any]) -> Signal:
    return Signal(
        "slo", rule, slo.subject, reading, limits, model=slo.model, lane=slo.lane, slo=slo.id,
        evidence={**about, "tier": slo.tier, "label": slo.label},
    )  # fmt: skip


def _report(
    settings: SloSettings, facts: Facts, quantiles: Mapping[str, Reading], *, span: timedelta
) -> dict[str, Any]:
    window = facts.recent[span]
    return {
        "at": facts.now.isoformat(),
        "window_s": span.total_seconds(),
        "requests": window.requests,
        "streams": window.ttft.count,
        "state": quantiles["ttft_p99"].state,
        "objectives": {name: _objective(name, settings, facts, quantiles, window) for name in OBJECTIVES},
    }


def _objective(
    name: str, settings: SloSettings, facts: Facts, quantiles: Mapping[str, Reading], window: Window
) -> dict[str, Any] | None:
    """None where nothing is promised."""
    limit, allowed = settings.limit_of(name), settings.allowed_of(name)
    if limit is None or allowed is None:
        return None
    whole = facts.counts.get(BUDGET_PERIOD, {}).get(name, Count())
    if name in quantiles:
        value, samples = quantiles[name].value, quantiles[name].samples
    else:
        samples = window.requests
        value = window.counts.get(name, 0) / samples if samples else None
    return {
        "value": value,
        "limit": limit,
        "samples": samples,
        "state": "measured" if samples >= settings.min_samples else "few" if samples else "absent",
        "budget_left": budget_left(whole, allowed),
        "budget_requests": whole.total,
        "burn_1h": burn_rate(facts.counts.get(HOUR, {}).get(name, Count()), allowed),
        "burn_6h": burn_rate(facts.counts.get(6 * HOUR, {}).get(name, Count()), allowed),
    }
