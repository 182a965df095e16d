"""What a candidate changes against the stable release, and what that does to the KV cache and memory of one replica.

A side is taken as the catalogue has it; a prediction that cannot be made says why and has no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pool.domain.fit import decide_fit, footprint_bytes, gib
from pool.domain.memory import Device, Unknown, context_of
from pool.domain.profiles import EngineSettings, changed_fields, settings_to_json
from pool.domain.version_facts import ModelFacts

_VERSION_FACTS = ("architecture", "parameters", "dtype", "quantization", "weight_bytes", "context_tokens")


@dataclass(frozen=True, kw_only=True)
class LaneSide:
    """The engine of one lane. `printed_tokens`: KV tokens that a running replica printed; None: none runs."""

    profile: str
    settings: EngineSettings
    printed_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """A release. `lanes`: "" stands for all that have none of their own. `facts` None: not read yet. `device`: where
    its replicas go, as measured; None: not known. `engine_versions`: of its runtime on the nodes that have it."""

    number: int
    version: str
    source: str
    facts: ModelFacts | None
    runtime: str
    engine_versions: tuple[str, ...]
    lanes: Mapping[str, LaneSide]
    device: Device | None
    is_simulated: bool = False


@dataclass(frozen=True)
class Change:
    """`area`: weights, engine, runtime or lanes. `lane` None: of the whole release, or the same in all lanes.
    `part_of`: comes with another change and is not counted by itself; None: a change of its own."""

    area: str
    field: str
    lane: str | None
    stable: Any
    candidate: Any
    part_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaPrediction:
    """Predicted, of one replica on each of its devices. None: unknown, and `unknown` says why. `device_bytes`: what
    must be free before it starts. `printed_tokens`: what an engine that runs has said itself."""

    kv_tokens: int | None = None
    kv_bytes: int | None = None
    weight_bytes: int | None = None
    device_bytes: int | None = None
    is_estimate: bool = True
    unknown: str = ""
    printed_tokens: int | None = None


@dataclass(frozen=True)
class LanePrediction:
    """`lane` None: all lanes. A change is candidate less stable; None where either is unknown."""

    lane: str | None
    stable: ReplicaPrediction
    candidate: ReplicaPrediction
    kv_tokens_change: int | None
    kv_bytes_change: int | None
    device_bytes_change: int | None
    text: str


@dataclass(frozen=True)
class Warn:
    """`code` is stable."""

    code: str
    text: str


@dataclass(frozen=True)
class ReleaseDiff:
    """`changed`: the fields that were changed by themselves, each once."""

    stable: int
    candidate: int
    changes: tuple[Change, ...]
    changed: tuple[str, ...]
    memory: tuple[LanePrediction, ...]
    warnings: tuple[Warn, ...]

    def as_json(self) -> dict[str, Any]:
        """The shape is that of the fields:

        `{stable, candidate, changes: [{area, field, lane, stable, candidate, part_of}], changed: [field],
        memory: [{lane, stable: M, candidate: M, kv_tokens_change, kv_bytes_change, device_bytes_change, text}],
        warnings: [{code, text}]}` with
        `M = {kv_tokens, kv_bytes, weight_bytes, device_bytes, is_estimate, unknown, printed_tokens}`.
        """
        return asdict(self)


def diff_releases(candidate: Side, stable: Side) -> ReleaseDiff:
    pairs = _pair_lanes(candidate, stable)
    changes = (*_version_changes(candidate, stable), *_runtime_changes(candidate, stable), *_settings(pairs))
    memory = tuple(
        _memory(lane, _predict(candidate, after), _predict(stable, before))
        for lane, (after, before) in pairs.items()
        if after is not None and before is not None
    )
    changed = tuple(dict.fromkeys(change.field for change in changes if change.part_of is None))
    warnings = (
        *_count_warnings(changed),
        *_lane_warnings(candidate, pairs),
        *_context_warnings(candidate, pairs),
    )
    return ReleaseDiff(stable.number, candidate.number, changes, changed, memory, warnings)


Pairs = Mapping[str, tuple[LaneSide | None, LaneSide | None]]


def _pair_lanes(candidate: Side, stable: Side) -> Pairs:
    """Candidate and stable of each lane that either names; what has none of its own runs on that of all lanes."""
    named = dict.fromkeys([*stable.lanes, *candidate.lanes])
    return {
        lane: (
            candidate.lanes.get(lane, candidate.lanes.get("")),
            stable.lanes.get(lane, stable.lanes.get("")),
        )
        for lane in named
    }


def _version_changes(candidate: Side, stable: Side) -> list[Change]:
    if candidate.version == stable.version:
        return []
    changes = [Change("weights", "version", None, stable.version, candidate.version)]
    if candidate.source != stable.source:
        changes.append(Change("weights", "source", None, stable.source, candidate.source, "version"))
    for name in _VERSION_FACTS:
        before, after = (getattr(side.facts, name, None) for side in (stable, candidate))
        if before != after:
            changes.append(Change("weights", name, None, before, after, "version"))
    return changes


def _runtime_changes(candidate: Side, stable: Side) -> list[Change]:
    if candidate.runtime == stable.runtime:
        return []
    changes = [Change("runtime", "runtime", None, stable.runtime, candidate.runtime)]
    if candidate.engine_versions != stable.engine_versions:
        before, after = (", ".join(side.engine_versions) or None for side in (stable, candidate))
        changes.append(Change("runtime", "engine_version", None, before, after, "runtime"))
    return changes


def _settings(pairs: Pairs) -> list[Change]:
    """Each setting once where all lanes change it alike."""
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for lane, (after, before) in pairs.items():
        if after is None or before is None:
            found.setdefault("profile", {})[lane] = (before and before.profile, after and after.profile)
            continue
        old, new = settings_to_json(before.settings), settings_to_json(after.settings)
        for name in changed_fields(before.settings, after.settings):
            found.setdefault(name, {})[lane] = (old[name], new[name])
    return [change for name, by_lane in found.items() for change in _by_lane(name, by_lane, len(pairs))]


def _by_lane(name: str, by_lane: Mapping[str, tuple[Any, Any]], lanes: int) -> list[Change]:
    area = "lanes" if name == "profile" else "engine"
    values = list(by_lane.values())
    if len(values) == lanes and all(value == values[0] for value in values):
        return [Change(area, name, None, *values[0])]
    return [Change(area, name, lane or None, *pair) for lane, pair in by_lane.items()]


def _memory(lane: str, new: ReplicaPrediction, old: ReplicaPrediction) -> LanePrediction:
    return LanePrediction(
        lane=lane or None,
        stable=old,
        candidate=new,
        kv_tokens_change=_less(new.kv_tokens, old.kv_tokens),
        kv_bytes_change=_less(new.kv_bytes, old.kv_bytes),
        device_bytes_change=_less(new.device_bytes, old.device_bytes),
        text=_say(old, new),
    )


def _predict(side: Side, lane: LaneSide) -> ReplicaPrediction:
    printed = lane.printed_tokens
    if side.is_simulated:
        return ReplicaPrediction(
            unknown="a simulated engine holds no weights and no cache", printed_tokens=printed
        )
    if side.facts is None:
        return ReplicaPrediction(
            unknown=f"the facts of version {side.version} are not read yet", printed_tokens=printed
        )
    if side.device is None:
        return ReplicaPrediction(
            unknown=f"no device for runtime {side.runtime} is measured", printed_tokens=printed
        )
    fit = decide_fit(side.facts, lane.settings, device=side.device)
    needed = footprint_bytes(side.facts, lane.settings, device=side.device)
    return ReplicaPrediction(
        kv_tokens=fit.plan.printed_tokens if fit.plan else None,
        kv_bytes=fit.plan.budget_bytes if fit.plan else None,
        weight_bytes=fit.weight_bytes,
        device_bytes=None if isinstance(needed, Unknown) else needed,
        is_estimate=fit.plan is None or fit.plan.budget_is_estimate,
        unknown="" if fit.plan else fit.message,
        printed_tokens=printed,
    )


def _less(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _say(before: ReplicaPrediction, after: ReplicaPrediction) -> str:
    is_printed = before.printed_tokens is not None and after.printed_tokens is not None
    if before.unknown and before.unknown == after.unknown and not is_printed:
        return f"KV cache per replica and memory on each device: unknown, {before.unknown}."
    tokens = f"KV cache per replica: {_tokens(before)} → {_tokens(after)}"
    device = f"on each device {_size(before.device_bytes)} → {_size(after.device_bytes)}"
    unknown = " ".join(dict.fromkeys(f"Unknown: {side.unknown}." for side in (before, after) if side.unknown))
    return f"{tokens}, {_size(before.kv_bytes)} → {_size(after.kv_bytes)}; {device}. {unknown}".strip()


def _tokens(side: ReplicaPrediction) -> str:
    if side.kv_tokens is None:
        return "unknown" if side.printed_tokens is None else f"{side.printed_tokens} tokens as printed"
    return f"{'about ' if side.is_estimate else ''}{side.kv_tokens} tokens"


def _size(count: int | None) -> str:
    return "unknown" if count is None else gib(count)


def _count_warnings(changed: Sequence[str]) -> list[Warn]:
    if not changed:
        return [Warn("nothing_changed", "The two releases have the same weights, settings and runtime.")]
    if len(changed) == 1:
        return []
    text = (
        f"{len(changed)} things change at once ({', '.join(changed)}): if the candidate is worse, it is not known "
        "which of them did it. Change one thing in a release."
    )
    return [Warn("several_changes", text)]


def _lane_warnings(candidate: Side, pairs: Pairs) -> list[Warn]:
    lost = [lane or "all others" for lane, (after, _) in pairs.items() if after is None]
    if not lost:
        return []
    text = f"Release {candidate.number} has no profile for what stable serves in: {', '.join(lost)}."
    return [Warn("lane_missing", text)]


def _context_warnings(candidate: Side, pairs: Pairs) -> list[Warn]:
    if candidate.facts is None:
        return []
    warnings = []
    for lane, (after, before) in pairs.items():
        if after is None or before is None or before.settings.max_model_len is None:
            continue
        old, new = before.settings.max_model_len, context_of(candidate.facts, after.settings)
        if new < old:
            where = f" in lane {lane}" if lane else ""
            text = f"The longest request falls from {old} to {new} tokens{where}: longer ones are refused."
            warnings.append(Warn("context_shorter", text))
    return warnings
