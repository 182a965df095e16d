"""What a rollout's gates compare and how much worse an operator lets them be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

ALPHA: Final = 0.05
"""Of all acting gates together: how often a candidate that is no worse may be called so, over a whole rollout."""
LIMIT_SHARE: Final = 0.05
"""A limit on a time is on P95: so many of the candidate's units may pass it."""
RATES: Final = frozenset({"errors", "interrupted", "shape"})
TIMES: Final = frozenset({"ttft", "itl", "per_token"})


@dataclass(frozen=True, slots=True)
class GateSetting:
    """`margin_ratio`: worse by no more than this part of stable's is allowed: of the odds of an error, of a time, of
    the length of answers in both directions. `margin_points`: a share's difference (0.01 is one point of a hundred) up
    to which "not worse" is said. `limit_ratio`, `limit_s`: fixed limits, None = none; a time's is on P95. `dry_run`:
    reports and never acts.
    """

    margin_ratio: float = 0.10
    margin_points: float | None = None
    limit_ratio: float | None = None
    limit_s: float | None = None
    dry_run: bool = False


DEFAULTS: Final[Mapping[str, GateSetting]] = MappingProxyType(
    {
        "errors": GateSetting(0.25, margin_points=0.01, limit_ratio=0.05),
        "interrupted": GateSetting(0.25, margin_points=0.01, limit_ratio=0.05),
        "ttft": GateSetting(0.10),
        "itl": GateSetting(0.10),
        "per_token": GateSetting(0.10),
        "shape": GateSetting(0.25, margin_points=0.02),
    }
)
GATES: Final = tuple(DEFAULTS)
RANGES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "margin_ratio": (0.0, 10.0),
        "margin_points": (0.0001, 0.5),
        "limit_ratio": (0.0001, 0.95),
        "limit_s": (0.001, 3600.0),
    }
)
"""Least and largest value of each setting that is a number."""


@dataclass(frozen=True)
class GateSettings:
    by_gate: Mapping[str, GateSetting] = field(default_factory=lambda: DEFAULTS)

    @property
    def acting(self) -> tuple[str, ...]:
        return tuple(gate for gate, setting in self.by_gate.items() if not setting.dry_run)

    def as_json(self) -> dict[str, dict[str, Any]]:
        return {gate: _write(setting) for gate, setting in self.by_gate.items()}


def read_gates(written: Mapping[str, Any]) -> GateSettings:
    """`{gate: {margin_ratio, margin_points, limit_ratio, limit_s, dry_run}}`; what is missing has its default. Raises
    ValueError with each broken rule, one a line."""
    broken: list[str] = []
    if not isinstance(written, Mapping):
        raise ValueError("gates: an object of gates is wanted")
    broken += [
        f"{gate!s:.63}: there is no such gate; there are {', '.join(GATES)}"
        for gate in written
        if gate not in GATES
    ]
    by_gate = {gate: _read_gate(gate, written.get(gate, {}), broken) for gate in GATES}
    if broken:
        raise ValueError("\n".join(broken))
    return GateSettings(by_gate)


def settings_of(gate: str) -> tuple[str, ...]:
    """Which settings a gate has."""
    if gate in TIMES:
        return ("margin_ratio", "limit_s", "dry_run")
    limits = () if gate == "shape" else ("limit_ratio",)
    return ("margin_ratio", "margin_points", *limits, "dry_run")


def _read_gate(gate: str, written: Any, broken: list[str]) -> GateSetting:
    setting = DEFAULTS[gate]
    if not isinstance(written, Mapping):
        broken.append(f"{gate}: an object is wanted")
        return setting
    for name, value in written.items():
        fault = _find_fault(gate, str(name), value)
        if fault:
            broken.append(f"{gate}.{name!s:.63}: {fault}")
        else:
            kept: dict[str, Any] = {name: value if value is None or name == "dry_run" else float(value)}
            setting = replace(setting, **kept)
    return setting


def _find_fault(gate: str, name: str, value: Any) -> str:
    """Empty where the value may stand."""
    if name not in settings_of(gate):
        return "there is no such setting"
    if name == "dry_run":
        return "" if isinstance(value, bool) else "true or false is wanted"
    if value is None and name.startswith("limit_"):
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number is wanted"
    lowest, highest = RANGES[name]
    return "" if lowest <= value <= highest else f"a number from {lowest:g} to {highest:g} is wanted"


def _write(setting: GateSetting) -> dict[str, Any]:
    written: dict[str, Any] = {"margin_ratio": setting.margin_ratio, "dry_run": setting.dry_run}
    for name in ("margin_points", "limit_ratio", "limit_s"):
        value = getattr(setting, name)
        if value is not None:
            written[name] = value
    return written
