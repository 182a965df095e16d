"""`./sluice test [pytest options]`: brings what the tests need, then becomes pytest."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from launcher.compiling import ensure_compiled
from launcher.demo_model import ensure_demo_model
from launcher.environments import ensure_console, ensure_dev, ensure_engine, install_plugin
from launcher.errors import LauncherError
from launcher.handing_over import hand_over
from launcher.layout import ROOT, find_cache
from launcher.locks import hold_lock
from launcher.progress import Progress
from launcher.toolbox import tool_environment
from pool.env import env_bool

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
APT_TIMEOUT_S = 900


def run(name: str, arguments: list[str]) -> int:
    """Does not return: pytest takes the launcher's place, its status (5 for "no tests" included) is the
    command's."""
    progress = Progress()
    dev = ensure_dev(progress)
    # Whole installations that tests start run in it, as an operator's do.
    ensure_console(progress)
    if not _names_paths(arguments):
        # Else every installation that a test starts would wait for it, beside all other tests.
        ensure_compiled(progress)
    env = tool_environment(dev)
    if wants("browser", arguments):
        env |= _find_browser(progress)
    if wants("engine", arguments):
        engine = ensure_engine(progress, "cpu")
        plugin = install_plugin(engine, progress)
        env |= {
            "SLUICE_TEST_ENGINE_PYTHON": str(engine.python),
            "SLUICE_TEST_ENGINE_PLUGIN": str(plugin or ""),
            "SLUICE_TEST_DEMO_MODEL": str(ensure_demo_model(engine, progress)),
        }
    hand_over(dev.python, ["-m", "pytest", *spread(arguments), *arguments], env=env)


def spread(arguments: list[str]) -> list[str]:
    """Processes for a whole run: one per core beside real engines, twice as many where most tests wait.

    What shares a server or an engine stays together (`tests/conftest.py`).
    """
    chosen = any(
        re.match(r"-n\d*$|-n=|--numprocesses|-p$|--pdb|-x$|--collect-only", word) for word in arguments
    )
    if chosen or _names_paths(arguments):
        return []
    cores = os.cpu_count() or 1
    count = cores if wants("engine", arguments) else 2 * cores
    return ["-n", str(min(8, count)), "--dist", "loadgroup"]


def wants(mark: str, arguments: list[str]) -> bool:
    """Whether tests with the mark may be among those chosen. Runs of single files bring what they need
    themselves."""
    expression = _read_expression(arguments)
    if _names_paths(arguments) and not any(mark in word for word in arguments):
        return False
    return not expression or _matches(expression, {mark})


def _matches(expression: str, marks: set[str]) -> bool:
    """pytest's `-m`: names are true when the test bears them. What it would refuse is left for it to
    refuse."""
    words = re.sub(r"\b(?!(?:and|or|not)\b)\w+", lambda name: str(name[0] in marks), expression)
    if not re.fullmatch(r"(?:True|False|and|or|not|[\s()])*", words):
        return True
    try:
        return bool(eval(words, {"__builtins__": {}}))
    except SyntaxError:
        return True


def _read_expression(arguments: list[str]) -> str:
    for index, word in enumerate(arguments):
        if word == "-m":
            return " ".join(arguments[index + 1 : index + 2])
        if word.startswith("-m"):
            return word[2:].lstrip("=")
    return ""


def _names_paths(arguments: list[str]) -> bool:
    return any((ROOT / word.partition("::")[0]).exists() for word in arguments if not word.startswith("-"))


def _find_browser(progress: Progress) -> dict[str, str]:
    """`SLUICE_TEST_CHROMIUM`, or its absence said aloud; under CI=true an absent browser fails the run."""
    found = next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install_chromium(progress)
        found = shutil.which("chromium")
    if found:
        return {"SLUICE_TEST_CHROMIUM": found}
    problem = "No Chromium is here and this user cannot install it: the browser tests are SKIPPED."
    if env_bool("CI", default=False):
        raise LauncherError(f"{problem} Under CI=true that is a failure. Install the package chromium.")
    progress.say(problem)
    return {}


def _install_chromium(progress: Progress) -> None:
    log = find_cache() / "chromium.log"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["chromium", "fonts-dejavu-core"]
    with progress.step("Chromium for the browser tests"), hold_lock(Path("/tmp/sluice-apt.lock")):
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
                subprocess.run(
                    ["apt-get", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=env,
                    timeout=APT_TIMEOUT_S,
                    check=False,
                )
    if not shutil.which("chromium"):
        sys.stderr.write(f"sluice test: apt-get could not install chromium, see {log}\n")
