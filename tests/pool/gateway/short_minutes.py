"""The gateway's own command with minutes of 4 s: `python -m tests.pool.gateway.short_minutes --workers 3`."""

import sys
from dataclasses import replace

from pool.gateway import __main__ as command
from pool.gateway.config import Config, read_config

WINDOW_S = 4.0


def read_short(*, worker: int = 0, workers: int = 1) -> Config:
    return replace(read_config(worker=worker, workers=workers), limit_window_s=WINDOW_S)


if __name__ == "__main__":
    setattr(command, "read_config", read_short)  # noqa: B010  it is imported there, not defined
    sys.exit(command.main())
