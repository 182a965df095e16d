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
from pool.gateway.listener import GatewayRuns, PortTaken
from pool.gateway.memory import map_large_blocks
from pool.gateway.process import Gateway, raise_file_limit

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
    map_large_blocks()
    return serve(config) if workers == 1 else Keeper(workers).run()


def serve(config: Config) -> int:
    async def run() -> None:
        await Gateway(config).run()

    try:
        uvloop.run(run())
    except (PortTaken, GatewayRuns) as error:
        sys.stderr.write(f"{error.message}\n")
        return _BAD_START
    return 0


class Keeper:
    """Respawns what dies; SIGTERM drains all, a second one ends them at once. A child that cannot start ends all."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._children: dict[int, int] = {}
        self._is_leaving = False

    def run(self) -> int:
        for worker in range(self._count):
            self._spawn(worker)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        code = 0
        while self._children:
            pid, status = os.wait()
            worker = self._children.pop(pid)
            if os.waitstatus_to_exitcode(status) == _BAD_START and not code:
                code = _BAD_START
                self._on_signal(signal.SIGTERM, None)
            if not self._is_leaving:
                time.sleep(_RESPAWN_PAUSE_S)
            if not self._is_leaving:
                self._spawn(worker)
        return code

    def _on_signal(self, number: int, _frame: object) -> None:
        self._is_leaving = True
        for pid in list(self._children):
            os.kill(pid, number)

    def _spawn(self, worker: int) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = worker
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _die_with_parent()
        os._exit(serve(read_config(worker=worker, workers=self._count)))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
