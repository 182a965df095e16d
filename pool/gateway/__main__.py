"""`python -m pool.gateway [--workers N]`: one process, or a small parent that keeps N of them."""

import argparse
import ctypes
import logging
import os
import signal
import sys
import time

import uvloop

from pool.env import ConfigError
from pool.gateway.config import Config, read_config, read_worker_count
from pool.gateway.process import Gateway, PortTaken, raise_file_limit

_BAD_START = 2
_RESPAWN_PAUSE_S = 0.5
_PR_SET_PDEATHSIG = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pool.gateway", description="OpenAI-compatible gateway")
    parser.add_argument("--workers", type=int, default=None, help="processes that share the port")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        workers = arguments.workers or read_worker_count()
        config = read_config()
    except ConfigError as error:
        sys.stderr.write(f"{error.message}\n")
        return _BAD_START
    raise_file_limit()
    return serve(config) if workers == 1 else keep_workers(workers)


def serve(config: Config) -> int:
    async def run() -> None:
        await Gateway(config).run()

    try:
        uvloop.run(run())
    except PortTaken as error:
        sys.stderr.write(f"{error.message}\n")
        return _BAD_START
    return 0


def keep_workers(count: int) -> int:
    """Respawns what dies; SIGTERM drains all, a second one ends them at once."""
    children: dict[int, int] = {}
    state = {"signals": 0}

    def on_signal(number: int, _frame: object) -> None:
        state["signals"] += 1
        for pid in list(children):
            os.kill(pid, number)

    for worker in range(count):
        children[_spawn(worker, count)] = worker
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    while children:
        pid, _status = os.wait()
        index = children.pop(pid, None)
        if index is not None and not state["signals"]:
            time.sleep(_RESPAWN_PAUSE_S)
        if index is not None and not state["signals"]:
            children[_spawn(index, count)] = index
    return 0


def _spawn(worker: int, count: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()
    os._exit(serve(read_config(worker=worker, workers=count)))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
