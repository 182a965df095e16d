"""The fork server of a runtime: imports the engine's modules once, then forks an engine per request.

Runs in the runtime's interpreter, before any CUDA context exists, and stays single-threaded. It serves one
peer (the node host) over an inherited SOCK_SEQPACKET socket: one JSON datagram and two descriptors (log,
lock) per engine. Each engine is a grandchild: the node host (a subreaper) becomes its parent and reaps it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from typing import Any

from sluice_engine.boot import FORK_VARIABLE, PR_SET_PDEATHSIG, die_with_parent, fork_children

# A datagram holds argv and environment of one engine; Linux allows about 200 KiB.
MAX_DATAGRAM_BYTES = 192 * 1024
OPTIONAL_MODULES = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.model_executor.model_loader",
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.launchers.api_server.routers",
    "vllm.entrypoints.serve.utils.api_utils",
    "vllm.utils.argparse_utils",
    "vllm.model_executor.models.llama",
    "transformers.models.auto.tokenization_auto",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
PLATFORM_MODULES = {
    "cpu": (
        "vllm.v1.worker.cpu_worker",
        "vllm.v1.worker.cpu_model_runner",
        "vllm.v1.attention.backends.cpu_attn",
    ),
    "cuda": ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner"),
}


class Refused(Exception):
    """This fork server cannot make a sound fork; the node host starts the engine directly."""


def main() -> None:
    options = _parse_options()
    _die_with_node_host()
    peer = socket.socket(fileno=options.fd)
    _set_title(f"sluice-forkserver {options.platform}")
    started = time.monotonic()
    failed = import_modules(options.module, platform=options.platform)
    gc.collect()
    gc.freeze()
    _send(peer, {"ready": True, "import_s": time.monotonic() - started, "missing": failed, **state()})
    job = _serve(peer)
    if job is not None:
        run_engine(job)


def import_modules(module: str, *, platform: str) -> list[str]:
    """Imports the engine's entry module (must work) and those that it would import later (may be missing)."""
    importlib.import_module(module)
    failed = []
    for name in (*OPTIONAL_MODULES, *PLATFORM_MODULES.get(platform, ())):
        try:
            importlib.import_module(name)
        except Exception as exc:  # a plug-in of the engine may raise anything at import
            failed.append(f"{name}: {type(exc).__name__}")
    return failed


def state() -> dict[str, Any]:
    """What makes a fork unsound, as measured now."""
    torch = sys.modules.get("torch")
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "cuda": bool(torch is not None and torch.cuda.is_initialized()),
        "tracker": bool(tracker is not None and tracker._resource_tracker._fd is not None),
    }


def _serve(peer: socket.socket) -> dict[str, Any] | None:
    """In the server: returns None when the node host goes. In a forked engine: returns its job."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(peer, MAX_DATAGRAM_BYTES, 2)
        if not content:
            return None
        job: dict[str, Any] = json.loads(content)
        try:
            forked = _fork_engine(job, descriptors)
        except (OSError, Refused) as exc:
            _send(peer, {"error": str(exc)})
            forked = None
        if forked == 0:
            _become_engine(job, descriptors, peer)
            return job
        for descriptor in descriptors:
            os.close(descriptor)
        if forked:
            _send(peer, {"pid": forked})


def _fork_engine(job: dict[str, Any], descriptors: list[int]) -> int:
    """Forks twice. Returns the pid in the server and 0 in the engine."""
    found = state()
    if found["threads"] != 1 or found["cuda"] or found["tracker"]:
        raise Refused(f"not sound to fork: {found}")
    if len(descriptors) != 2:
        raise Refused("expected two descriptors")
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if middle == 0:
        return _fork_again(job, writer)
    os.close(writer)
    os.waitpid(middle, 0)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    if not text:
        raise Refused("the engine process ended before it began")
    return int(text)


def _fork_again(job: dict[str, Any], writer: int) -> int:
    """In the middle process. The engine writes its pid into the record before anybody else knows it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    with open(job["pid_file"], "w") as file:
        file.write(str(os.getpid()))
    os.write(writer, str(os.getpid()).encode())
    os.close(writer)
    return 0


def _become_engine(job: dict[str, Any], descriptors: list[int], peer: socket.socket) -> None:
    """Descriptors, signals, environment, seeds and title of a new process. The lock stays open on purpose."""
    log, lock = descriptors
    peer.detach()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _close_all_but(lock)
    os.set_inheritable(lock, True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(job["env"])
    # Imports may have asked for the folder already, under the fork server's environment.
    tempfile.tempdir = None
    os.chdir(job["cwd"])
    sys.argv = job["argv"]
    _seed_anew()
    _set_title(job["title"])


def run_engine(job: dict[str, Any]) -> None:
    """Runs the engine's main(); its exit is the exit of this process."""
    die_with_parent()
    if os.environ.get(FORK_VARIABLE) == "1":
        fork_children()
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        inspect_models_here()
    importlib.import_module(job["module"]).main()


def inspect_models_here() -> None:
    """vLLM asks a new interpreter what a model class can do (10 s), so that no import touches CUDA.

    On `cpu` there is nothing to touch: the answer is had in this process, from modules imported already.
    """
    registry = importlib.import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda inspect: inspect()


def _close_all_but(keep: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number != keep:
            with contextlib.suppress(OSError):
                os.close(number)


def _seed_anew() -> None:
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
    if torch := sys.modules.get("torch"):
        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))


def _set_title(title: str) -> None:
    """Must run once before the environment is cleared: the module finds the title's memory through it."""
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(title)


def _die_with_node_host() -> None:
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _send(peer: socket.socket, message: dict[str, Any]) -> None:
    peer.send(json.dumps(message).encode())


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--platform", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
