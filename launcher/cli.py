"""The command line of `./sluice`: finds the command, turns expected failures into one sentence and a
status."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from launcher.variables import anchor_paths
from pool.domain.errors import PoolError

# With options of their own: (module, what it does).
PARSED = {
    "up": ("up", "set up, start everything, print how to reach it"),
    "down": ("down", "stop everything in order, engines too"),
    "status": ("status", "what runs, where, since when"),
    "logs": ("logs", "a process' log"),
}
# The rest of the line goes to what they run.
PASSED_ON = {
    "test": ("test", "all tests; takes pytest's options"),
    "check": ("check", "format, lint, types, import contracts, migrations"),
    "bench": ("bench", "a benchmark by name"),
    "worker": ("single", "one node worker, for further hosts: --node NAME [--stop-engines]"),
    "gateway": ("single", "one gateway: [--workers N]"),
    "web": ("single", "one console"),
    "control": ("single", "the control loops"),
    "telemetry": ("single", "telemetry's ingestion"),
    "manage": ("manage", "Django's manage.py in the right environment"),
}


def main(argv: Sequence[str]) -> int:
    anchor_paths()
    try:
        if argv and argv[0] in PASSED_ON:
            module = importlib.import_module(f"launcher.commands.{PASSED_ON[argv[0]][0]}")
            return int(module.run(argv[0], list(argv[1:])))
        options = _make_parser().parse_args(argv)
        return int(options.run(options))
    except PoolError as error:
        sys.stderr.write(f"sluice: {error.message}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # `./sluice logs | head`: nothing is left to tell
        return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice", description="Operations console and gateway for a pool of GPUs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, help_text) in PARSED.items():
        module = importlib.import_module(f"launcher.commands.{module_name}")
        command = commands.add_parser(name, help=help_text, description=help_text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    for name, (_, help_text) in PASSED_ON.items():
        commands.add_parser(name, help=help_text, add_help=False)
    return parser
