"""`./sluice check`: every static check, all of them even when one fails."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.environments import Environment, ensure_dev
from launcher.layout import ROOT
from launcher.progress import Progress
from launcher.servers import find_postgres_binaries, start_postgres
from launcher.toolbox import tool_environment

CHECKS = (
    ("format", ("-m", "ruff", "format", "--check", "--quiet", ".")),
    ("lint", ("-m", "ruff", "check", "--quiet", ".")),
    ("types", ("-m", "mypy")),
    ("imports", ("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")),
    ("migrations", ("manage.py", "makemigrations", "--check", "--dry-run", "-v", "1")),
)


def run(name: str, arguments: list[str]) -> int:
    """Names given on the line select checks; none means all."""
    chosen = [check for check in CHECKS if not arguments or check[0] in arguments]
    if len(chosen) < len(set(arguments)):
        sys.stderr.write(f"sluice check: choose from {', '.join(check[0] for check in CHECKS)}\n")
        return 2
    dev = ensure_dev(Progress())
    failed = []
    for check, command in chosen:
        started = time.monotonic()
        with _prepare(check, dev) as env:
            code = subprocess.run([dev.python, *command], cwd=ROOT, env=env, check=False).returncode
        verdict = "ok" if code == 0 else "FAILED"
        sys.stdout.write(f"{check:<12}{verdict:<8}{time.monotonic() - started:5.1f} s\n")
        sys.stdout.flush()
        failed += [check] if code else []
    if failed:
        sys.stderr.write(f"sluice {name}: failed: {', '.join(failed)}\n")
    return 1 if failed else 0


@contextmanager
def _prepare(check: str, dev: Environment) -> Iterator[dict[str, str]]:
    """The variables; for the migrations, which Django compares with a database, a server for the moment."""
    env = tool_environment(dev)
    if check != "migrations":
        yield env
        return
    with tempfile.TemporaryDirectory(prefix="sluice-check-") as folder:
        bin_dir = find_postgres_binaries(dev.site_packages)
        server = start_postgres(Path(folder) / "pg", Path(folder) / "run", durable=False, bin_dir=bin_dir)
        try:
            yield env | {"SLUICE_DATABASE_URL": server.url}
        finally:
            server.stop()
