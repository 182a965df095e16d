"""The general plug-in: vLLM calls install() in API server, engine core and workers, maybe more than once."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from typing import Any

from sluice_engine.secret import mask_output

FORK_VARIABLE = "SLUICE_ENGINE_FORK"
METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"
# <linux/prctl.h>
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_watched: list[bool] = []
_parents: list[int] = []


def install() -> None:
    """Death signal in children, masked output everywhere, forked children where the engine asks for them; and the
    hook that follows its steps, which never fails."""
    mask_output()
    die_with_parent()
    if os.environ.get(FORK_VARIABLE) == "1":
        fork_children()
    with contextlib.suppress(Exception):
        # Imported here: what this engine's version breaks in it must not cost the death signal above.
        from sluice_engine.hook import install_hook

        install_hook()


def die_with_parent() -> None:
    """In a child of the API server: SIGKILL when the parent dies: no orphan keeps memory (vllm#55510).

    A spawned child comes here itself; a forked one has its plug-ins loaded already and is caught at the fork.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        _follow(parent.pid)
    if not _watched:
        _watched.append(True)
        os.register_at_fork(before=_remember_parent, after_in_child=_follow_parent)


def _remember_parent() -> None:
    _parents.append(os.getpid())


def _follow_parent() -> None:
    parent = _parents[-1]
    _parents.clear()
    _follow(parent)


def _follow(parent: int | None) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def fork_children() -> None:
    """Children are forked, not spawned: vLLM's default on CUDA. The CPU platform forces `spawn`: undone here.

    vLLM itself still falls back to `spawn` once a CUDA context exists (0.32, utils/system_utils.py).
    """
    os.environ[METHOD_VARIABLE] = "fork"
    try:
        from vllm.platforms.cpu import CpuPlatform
    except ImportError:
        return
    if getattr(CpuPlatform, "_sluice_forks", False):
        return
    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        os.environ[METHOD_VARIABLE] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    CpuPlatform._sluice_forks = True
