"""A process that stands for an engine where its API does not matter: children, ignored SIGTERM, chosen exits.

Run by `python -m tests.fakes.stub_engine [--child] [--ignore-term] [--exit CODE] [--after S]`, or forked: `main()`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--exit", type=int)
    parser.add_argument("--after", type=float, default=0.0)
    options = parser.parse_args()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child and os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    sys.stdout.write(f"stub engine pid={os.getpid()} title ok\n")
    sys.stdout.flush()
    time.sleep(options.after)
    if options.exit is not None:
        sys.exit(options.exit)
    time.sleep(600)


if __name__ == "__main__":
    main()
