"""The field diff of two releases from the catalogue, with what engines printed (`pool/domain/release_diff.py`)."""

from __future__ import annotations

from pool.domain.memory import Device
from pool.domain.profiles import ProfileConflicts, parse_settings
from pool.domain.release_diff import LaneSide, ReleaseDiff, Side, diff_releases
from pool.domain.version_facts import facts_from_json
from pool.models import Device as DeviceRow
from pool.models import Release, Replica, Runtime


def load_diff(candidate: Release, stable: Release) -> ReleaseDiff:
    """About 8 queries."""
    return diff_releases(_side(candidate), _side(stable))


def _side(release: Release) -> Side:
    runtimes = list(Runtime.objects.filter(name=release.runtime, usable=True))
    kinds = {runtime.kind for runtime in runtimes}
    version = release.version
    return Side(
        number=release.number,
        version=version.name,
        source=f"{version.source} {version.revision}".strip(),
        facts=facts_from_json(version.facts) if version.facts else None,
        runtime=release.runtime,
        engine_versions=tuple(sorted({runtime.version for runtime in runtimes if runtime.version})),
        lanes=_lanes(release),
        device=_device(runtimes),
        is_simulated=kinds == {"sim"},
    )


def _lanes(release: Release) -> dict[str, LaneSide]:
    """Without lanes whose stored profile does not read any more."""
    printed = _printed(release)
    found = {}
    for use in release.profiles.select_related("profile").order_by("lane"):
        try:
            settings = parse_settings(use.profile.settings)
        except ProfileConflicts:
            continue
        found[use.lane] = LaneSide(
            profile=use.profile.name, settings=settings, printed_tokens=printed.get(use.lane)
        )
    return found


def _printed(release: Release) -> dict[str, int]:
    """The smallest KV cache that a ready replica of each lane printed, in tokens."""
    found: dict[str, int] = {}
    for lane, figures in Replica.objects.filter(release=release, phase="ready").values_list(
        "lane", "figures"
    ):
        printed = figures.get("printed")
        tokens = printed.get("kv_cache_tokens") if isinstance(printed, dict) else None
        if isinstance(tokens, int) and not isinstance(tokens, bool):
            found[lane] = min(tokens, found.get(lane, tokens))
    return found


def _device(runtimes: list[Runtime]) -> Device | None:
    """The smallest measured device of the runtime's platform; None: none is measured."""
    found = []
    for runtime in runtimes:
        kind = "cuda" if runtime.facts.get("platform") == "cuda" else "cpu"
        rows = DeviceRow.objects.filter(node_id=runtime.node_id, kind=kind, usable=True, memory__isnull=False)
        found += [(row.memory.total_bytes, kind) for row in rows.select_related("memory")]
    if not found:
        return None
    total, kind = min(found)
    return Device(kind="cuda" if kind == "cuda" else "cpu", total_bytes=total)
