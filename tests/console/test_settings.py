"""What a process uses that nobody gave a secret key."""

from __future__ import annotations

import os
import subprocess
import sys

from django.conf import settings

SHOW = "from console import settings; print(settings.SECRET_KEY)"


def test_without_a_secret_key_each_process_has_one_of_its_own() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_SECRET_KEY")}

    keys = {
        subprocess.run(
            [sys.executable, "-c", SHOW], env=env, cwd=settings.BASE_DIR, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    }

    assert len(keys) == 2
    assert all(len(key) > 50 for key in keys)
