"""`./sluice worker | gateway | web | control | telemetry`: one process, for further hosts and process
managers."""

import argparse
import os
import sys

from launcher.children import PRIVATE_UMASK
from launcher.compiling import ensure_compiled, name_compiled
from launcher.environments import ensure_console
from launcher.handing_over import (
    check_needed,
    find_surroundings,
    hand_over,
    prepare_environment,
    prepare_runtimes,
)
from launcher.installation import name_this_host
from launcher.processes import list_modules
from launcher.progress import Progress


def run(name: str, arguments: list[str]) -> int:
    """Does not return: the process takes the launcher's place."""
    parser = argparse.ArgumentParser(prog=f"sluice {name}", add_help=True, allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: SLUICE_DATA_DIR, else var/)")
    if name == "worker":
        parser.add_argument(
            "--node", metavar="NAME", default=name_this_host(), help="this host's name in the pool"
        )
    options, passed_on = parser.parse_known_args(arguments)
    surroundings = find_surroundings(data=options.data, node=getattr(options, "node", None))
    env = prepare_environment(surroundings, extra={"SLUICE_PROCESS": name})
    check_needed(name, env)
    surroundings.installation.layout.create()
    # Standard output belongs to the process; what the set-up says goes beside it.
    progress = Progress(sys.stderr)
    console = ensure_console(progress)
    if name == "gateway":
        env |= name_compiled(ensure_compiled(progress))
    if name == "worker":
        env |= prepare_runtimes(surroundings, progress)
    os.umask(PRIVATE_UMASK)
    hand_over(console.python, ["-m", *list_modules(surroundings.installation)[name], *passed_on], env=env)
