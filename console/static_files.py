"""Static files in the data folder, where the web server finds them."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.core.management import call_command

MANIFEST = "staticfiles.json"


def ensure_static_files() -> bool:
    """Collects them where nobody did; True if so. Whoever updates the code collects again (`./sluice up`)."""
    root = Path(settings.STATIC_ROOT)
    if (root / MANIFEST).exists():
        return False
    root.mkdir(parents=True, exist_ok=True)
    call_command("collectstatic", interactive=False, verbosity=0)
    return True
