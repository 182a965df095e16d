"""Takes the profiles that the pool wishes of a node's engines: one at a time, in a thread of its own."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from django.db import DatabaseError, InterfaceError, close_old_connections
from django.utils import timezone

from pool.domain.errors import PoolError
from pool.domain.step_profiles import EXCUSED_FOR, MAX_RESULT_BYTES, STEPS_LIMIT_S, Lost
from pool.models import Intent, Replica, StepProfile
from pool.ports import EngineSpec
from pool.services.intents import claim_intent, finish_intent
from pool.services.step_profiles import begin_profile, fail_profile, store_profile
from workers.engines.profiling import ProfileFailed, profile_engine, profile_folder
from workers.engines.trace import OTHER, PARTS, Profile, classify
from workers.watcher import Watcher

logger = logging.getLogger(__name__)

DEPTHS = (None, 12, 6, 3, 1)
"""Of the flame graph: the first that fits is kept."""
SECONDS_DIGITS = 7
_BROKEN = Lost("internal_error", "The profile could not be read. The worker's log says more.")
_TOO_LATE = "too_late"


class TakeProfile(Protocol):
    def __call__(
        self, address: str, *, engine_key: str, folder: str, steps: int, limit_s: float
    ) -> Profile: ...


@dataclass
class StepProfiler:
    """`find_watcher`: of replica and generation; what it watches stands still while a trace is written."""

    holder: uuid.UUID
    make_spec: Callable[[Replica], EngineSpec]
    find_watcher: Callable[[str, int], Watcher | None]
    take: TakeProfile = profile_engine
    busy: threading.Lock = field(default_factory=threading.Lock)
    """A trace takes some hundred MiB while it is read: one at a time. Further wishes wait for a later pass."""

    def carry_out(self, intent: Intent) -> bool:
        """Returns at once; False: another profile is being taken."""
        if not self.busy.acquire(blocking=False):
            return False
        # Unlike the node's other jobs it may be cut by the end of the process: the next worker takes it anew.
        work = partial(self._work, intent)
        threading.Thread(target=work, name=f"profile-{intent.replica_id}", daemon=True).start()
        return True

    def _work(self, intent: Intent) -> None:
        try:
            self._carry_out(intent)
        except (DatabaseError, InterfaceError) as exc:
            logger.info("profile of %s: no database: %s", intent.replica_id, exc)
        finally:
            close_old_connections()
            self.busy.release()

    def _carry_out(self, intent: Intent) -> None:
        if not (
            claim_intent(intent, holder=self.holder, now=timezone.now()) or intent.claimed_by == self.holder
        ):
            return
        run = begin_profile(intent, now=timezone.now())
        result = _TOO_LATE if run is None else self._take(intent.replica, run)
        failed = result != "profiled"
        finish_intent(intent, holder=self.holder, now=timezone.now(), result=result, failed=failed)

    def _take(self, replica: Replica, run: StepProfile) -> str:
        """The intent's result."""
        try:
            figures, flame = describe_profile(self._profile(replica, run))
            close_old_connections()
            kept = store_profile(run.pk, figures=figures, flame=flame, now=timezone.now())
            return "profiled" if kept else _TOO_LATE
        except (DatabaseError, InterfaceError):
            raise
        except PoolError as exc:
            why = Lost(str(exc.details.get("reason", exc.code)), exc.message)
        except Exception:
            # The edge of this loop: without a reason stored, the run would be taken again at each pass.
            logger.exception("profile of %s failed", replica.pk)
            why = _BROKEN
        fail_profile(run.pk, why, now=timezone.now())
        return why.code

    def _profile(self, replica: Replica, run: StepProfile) -> Profile:
        spec = self.make_spec(replica)
        watcher = self.find_watcher(spec.replica_id, spec.generation)
        if watcher is None or not watcher.alive:
            raise ProfileFailed("This node does not watch the engine now, so it may be ending.")
        watcher.excuse(timezone.now() + EXCUSED_FOR)
        try:
            return self.take(
                spec.address,
                engine_key=spec.engine_key,
                folder=profile_folder(spec),
                steps=run.steps_asked,
                limit_s=STEPS_LIMIT_S,
            )
        finally:
            watcher.excuse(None)


def describe_profile(profile: Profile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and flame graph as JSON, within MAX_RESULT_BYTES: of a flame graph that is too large the tips go."""
    figures = {
        "on_device": profile.on_device,
        "steps": [_rounded(asdict(step)) for step in profile.steps],
        "kernels": [_rounded(asdict(kernel)) for kernel in profile.kernels],
    }
    whole = _with_parts(_rounded(profile.flame.as_json()), OTHER)
    for depth in DEPTHS:
        flame = whole if depth is None else _cut(whole, depth)
        if len(json.dumps([figures, flame])) <= MAX_RESULT_BYTES:
            break
    return figures, flame


def _with_parts(node: dict[str, Any], above: str) -> dict[str, Any]:
    """What runs inside an operation of a known part belongs to that part."""
    own = node["name"] if node["name"] in PARTS else classify(node["name"])
    part = above if above != OTHER else own
    return {**node, "part": part, "children": [_with_parts(child, part) for child in node["children"]]}


def _cut(node: dict[str, Any], depth: int) -> dict[str, Any]:
    children = [_cut(child, depth - 1) for child in node["children"]] if depth > 0 else []
    return {**node, "children": children}


def _rounded(value: Any) -> Any:
    """To a tenth of a microsecond: what the trace says."""
    if isinstance(value, float):
        return round(value, SECONDS_DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
