"""`./sluice manage …`: Django's manage.py with the environment of this data folder's installation."""

import sys

from launcher.environments import ensure_console
from launcher.handing_over import find_surroundings, hand_over, prepare_environment
from launcher.layout import ROOT
from launcher.progress import Progress


def run(name: str, arguments: list[str]) -> int:
    """Does not return: manage.py takes the launcher's place."""
    env = prepare_environment(find_surroundings(), extra={"SLUICE_PROCESS": name})
    console = ensure_console(Progress(sys.stderr))
    hand_over(console.python, [str(ROOT / "manage.py"), *arguments], env=env)
