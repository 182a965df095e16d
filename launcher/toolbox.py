"""What tests and checks get as their environment: nothing of a running installation, the caches shared."""

import os

from launcher.environments import Environment
from launcher.layout import find_cache

# These may reach tests; every other SLUICE_ variable would point them at somebody's installation.
KEPT = ("SLUICE_PG_BINDIR", "SLUICE_TORCH_INDEX", "SLUICE_ENGINE_BUILD", "SLUICE_PYTHON", "SLUICE_TEST_")


def tool_environment(environment: Environment) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLUICE_", "PYTHON", "DJANGO_", "VIRTUAL_ENV")) or name.startswith(KEPT)
    }
    path = f"{environment.folder / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | {
        "PATH": path,
        "SLUICE_CACHE_DIR": str(find_cache()),
        "DJANGO_SETTINGS_MODULE": "console.settings",
        "LC_ALL": "C.UTF-8",
    }
