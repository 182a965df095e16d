"""`./sluice up --detach`: runs the foreground command in a session of its own and relays what it says until
it answers."""

import argparse
import os
import subprocess
import sys
import time

from launcher.layout import ROOT, Layout
from launcher.record import read_record

POLL_S = 0.1
SETTLED = ("ready", "degraded")
# Everything runs but the demo model does not answer.
NOT_ANSWERING = 2


def run_detached(options: argparse.Namespace, layout: Layout) -> int:
    """0 when everything answers, 2 when the demo does not, else the failed start's status."""
    layout.create()
    log = layout.logs / "up.log"
    command = [sys.executable, "-m", "launcher", "up", "--engine", options.engine, "--data", str(layout.data)]
    command.append("--unattended")
    command.append("--demo" if options.demo else "--no-demo")
    with open(log, "ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    try:
        with open(log, errors="replace") as reader:
            reader.seek(begin)
            while True:
                code = process.poll()
                record = read_record(layout.record)
                sys.stdout.write(reader.read())
                sys.stdout.flush()
                if code is not None:
                    return code
                if record and record.pid == process.pid and record.phase in SETTLED:
                    return 0 if record.phase == "ready" else NOT_ANSWERING
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        sys.stdout.write(
            "\nStill starting in the background: `./sluice status` tells, `./sluice down` stops it.\n"
        )
        return 130
