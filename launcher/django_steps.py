"""Runs Django's management commands of a start, each in a process of its own, output in
`logs/manage-<command>.log`."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from launcher.children import wrap_command
from launcher.errors import LauncherError
from launcher.layout import ROOT, Layout
from launcher.servers import read_tail

TIMEOUT_S = 300.0


class CommandFailed(LauncherError):
    """A management command failed; the message ends with what it said."""

    code: ClassVar[str] = "command_failed"


def run_command(arguments: Sequence[str], *, python: Path, env: Mapping[str, str], layout: Layout) -> None:
    log = layout.logs / f"manage-{arguments[0]}.log"
    command = wrap_command(
        [str(python), str(ROOT / "manage.py"), *arguments], death_signal=signal.SIGKILL, identity="plain"
    )
    with open(log, "ab") as output:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**env, "SLUICE_PROCESS": "manage"},
                cwd=ROOT,
                timeout=TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code != 0:
        raise CommandFailed(
            f"`manage {arguments[0]}` failed. {log} ends with:\n{read_tail(log, lines=12)}", log=str(log)
        )
