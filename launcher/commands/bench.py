"""`./sluice bench NAME …`: runs `bench/NAME.py` in the console environment."""

import sys

from launcher.environments import ensure_console
from launcher.errors import LauncherError
from launcher.handing_over import find_surroundings, hand_over, prepare_environment
from launcher.layout import ROOT
from launcher.progress import Progress


def run(name: str, arguments: list[str]) -> int:
    """Does not return: the benchmark takes the launcher's place."""
    known = list_benchmarks()
    if not arguments or arguments[0] not in known:
        asked = f"There is no benchmark {arguments[0]!r}." if arguments else "Name a benchmark."
        raise LauncherError(f"{asked} Benchmarks: {', '.join(known) or 'none yet'}.")
    env = prepare_environment(find_surroundings(), extra={"SLUICE_PROCESS": name})
    console = ensure_console(Progress(sys.stderr))
    hand_over(console.python, ["-m", f"bench.{arguments[0]}", *arguments[1:]], env=env)


def list_benchmarks() -> list[str]:
    """A benchmark is a module of `bench/` that can be run; others there serve them and begin with an
    underscore."""
    return sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py"))
