"""What one replica of a release in a lane needs of a device, as placement and the fit report both ask it."""

from __future__ import annotations

from dataclasses import dataclass

from pool.domain.placement import Need
from pool.domain.profiles import ProfileConflicts, parse_settings
from pool.domain.version_facts import CacheKind, ModelFacts, facts_from_json
from pool.models import Release
from pool.queries.placement import Inventory

_NO_FACTS = ModelFacts(
    architecture="unknown",
    model_type="unknown",
    layers=1,
    heads=1,
    kv_heads=1,
    head_size=1,
    hidden_size=1,
    vocab_size=1,
    cache_kind=CacheKind.UNKNOWN,
    cache_unknown_reason="a simulated engine has no cache",
)
"""A simulated engine needs no weights, so its version may have no facts."""


@dataclass(frozen=True)
class NoNeed:
    """Why nothing can be placed. `is_unknown`: a fact is still to be read, else something is wrong or missing."""

    reason: str
    is_unknown: bool = False


def find_need(inventory: Inventory, release: Release, lane: str) -> Need | NoNeed:
    kind = inventory.runtime_kind(release.runtime)
    if kind is None:
        return NoNeed(f"No node has a runtime '{release.runtime}'.")
    if kind != "sim" and release.version.facts is None:
        return NoNeed(f"The facts of version '{release.version.name}' are not known yet.", is_unknown=True)
    use = release.profiles.select_related("profile").filter(lane__in=[lane, ""]).order_by("-lane").first()
    if use is None:
        return NoNeed(f"The release has no profile for lane '{lane}'.")
    try:
        settings = parse_settings(use.profile.settings)
    except ProfileConflicts as exc:
        return NoNeed(exc.message)
    return Need(
        runtime=release.runtime,
        device_kind="cuda" if inventory.device_kind(release.runtime) == "cuda" else "cpu",
        settings=settings,
        facts=facts_from_json(release.version.facts) if release.version.facts else _NO_FACTS,
        simulated=kind == "sim",
    )
