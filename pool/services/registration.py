"""Registers versions, profiles and releases, after looking at what they would meet: files, hardware, memory."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from django.conf import settings as django_settings

from pool.domain.errors import PoolError
from pool.domain.fit import Fit, decide_fit
from pool.domain.memory import Device as DeviceSize
from pool.domain.profile_rules import Target, find_conflicts, require_no_conflicts
from pool.domain.profiles import (
    Conflict,
    EngineSettings,
    ProfileConflicts,
    digest_of,
    parse_settings,
    settings_to_json,
)
from pool.domain.sources import HubSource, Source, parse_source
from pool.domain.version_facts import ModelFacts, facts_from_json, facts_to_json
from pool.models import Device, Node, Profile, Release, Runtime, Version
from pool.services import catalog
from pool.services.audit import Actor
from pool.services.catalog import ReleaseWish, VersionWish
from pool.weights import SourceNotFound, inspect_files, locate, scan_folder

_COMMIT = re.compile(r"[0-9a-f]{40}")


class RemoteCodeRefused(PoolError):
    """The files name code of their own (auto_map), and nobody approved it (FC-52)."""

    code: ClassVar[str] = "remote_code"


def register_version(
    model: str,
    source: str,
    *,
    revision: str = "",
    name: str = "",
    approve_remote_code: bool = False,
    actor: Actor,
) -> Version:
    """Facts are read here when this host holds the files, else by the first node that does.

    Raises InvalidSource, PathOutsideRoots, SourceNotFound, FilesBroken, BadModelConfig, RemoteCodeRefused.
    """
    parsed = parse_source(source, revision=revision)
    if approve_remote_code and isinstance(parsed, HubSource) and not _COMMIT.fullmatch(parsed.revision):
        raise RemoteCodeRefused(
            "Code can only be approved of one commit: give the repository's commit (40 hexadecimal digits) as revision."
        )
    facts = _inspect(parsed)
    if facts is not None and facts.has_remote_code and not approve_remote_code:
        raise RemoteCodeRefused(
            "config.json names code of the repository (auto_map), which would run on your nodes. Read that code, then "
            "let an administrator register the version with its code approved."
        )
    wish = VersionWish(
        source=source,
        revision=revision,
        name=name,
        facts=None if facts is None else facts_to_json(facts),
        remote_code_approved=approve_remote_code,
    )
    return catalog.create_version(model, wish, actor=actor)


def _inspect(source: Source) -> ModelFacts | None:
    """None when a node has to look: a hub's files come later, and another host may hold the folder."""
    roots = [Path(root) for root in django_settings.MODEL_ROOTS]
    try:
        folder = locate(source, roots=roots, packages=django_settings.PACKAGE_PATHS)
    except SourceNotFound:
        if isinstance(source, HubSource) or _has_other_hosts():
            return None
        raise
    return inspect_files(folder, scan_folder(folder, roots=roots))


def _has_other_hosts() -> bool:
    return Node.objects.exclude(host__in=["", socket.gethostname()]).exclude(phase="replaced").exists()


def register_profile(name: str, settings: dict[str, object], *, comment: str = "", actor: Actor) -> Profile:
    """Raises ProfileConflicts with every rule that is broken."""
    parsed = parse_settings(settings)
    require_no_conflicts(parsed)
    return catalog.create_profile(
        name, settings_to_json(parsed), digest=digest_of(parsed), actor=actor, comment=comment
    )


def register_release(model: str, wish: ReleaseWish, *, actor: Actor) -> Release:
    """Checks each lane's profile against the version, the runtime's probes and the devices' memory.

    Raises ProfileConflicts; a context that no device can hold is refused with what would fit.
    """
    conflicts = tuple(_conflicts(model, wish))
    if conflicts:
        raise ProfileConflicts(conflicts)
    return catalog.create_release(model, wish, actor=actor)


def _conflicts(model: str, wish: ReleaseWish) -> Iterator[Conflict]:
    version = Version.objects.filter(model__name=model, name=wish.version).first()
    runtimes = list(Runtime.objects.filter(name=wish.runtime, usable=True))
    if version is None or version.facts is None or not runtimes or runtimes[0].kind == "sim":
        return
    facts = facts_from_json(version.facts)
    devices = _devices(runtimes)
    target = _target(facts, runtimes, devices, lanes=len(wish.profiles))
    for profile in Profile.objects.filter(name__in=set(wish.profiles.values())):
        settings = parse_settings(profile.settings)
        found = find_conflicts(settings, target)
        yield from found
        if not found:
            yield from _memory_conflict(profile, facts, settings, devices)


def _target(facts: ModelFacts, runtimes: list[Runtime], devices: list[Device], *, lanes: int) -> Target:
    """The most able of the nodes that have this runtime: one that can is enough."""
    quantizations = frozenset(name for runtime in runtimes for name in runtime.quantizations)
    dtypes = frozenset(name for runtime in runtimes for name in runtime.kv_cache_dtypes)
    capabilities = [_capability(device) for device in devices if device.compute_capability]
    return Target(
        facts=facts,
        device="cuda" if _platform(runtimes) == "cuda" else "cpu",
        compute_capability=max(capabilities, default=None),
        quantizations=quantizations or None,
        kv_cache_dtypes=dtypes or None,
        lanes=lanes,
    )


def _capability(device: Device) -> tuple[int, int]:
    major, _, minor = device.compute_capability.partition(".")
    return int(major), int(minor or 0)


def _platform(runtimes: list[Runtime]) -> str:
    return str(runtimes[0].facts.get("platform") or "cpu")


def _devices(runtimes: list[Runtime]) -> list[Device]:
    rows = Device.objects.filter(
        node__in=[runtime.node_id for runtime in runtimes], kind=_platform(runtimes), usable=True
    )
    return list(rows.select_related("memory"))


def _memory_conflict(
    profile: Profile, facts: ModelFacts, settings: EngineSettings, devices: list[Device]
) -> Iterator[Conflict]:
    """Refused only when no known device could ever hold it; what is busy now is the placement's question."""
    fits: list[Fit] = [
        decide_fit(
            facts, settings, device=DeviceSize(kind=_kind(device), total_bytes=device.memory.total_bytes)
        )
        for device in devices
        if hasattr(device, "memory")
    ]
    if not fits or any(fit.ok for fit in fits):
        return
    best = max(fits, key=lambda fit: fit.largest_context_tokens or 0)
    yield Conflict(best.code.value, f"Profile '{profile.name}': {best.message}", ("max_model_len",))


def _kind(device: Device) -> Literal["cpu", "cuda"]:
    return "cuda" if device.kind == "cuda" else "cpu"
