"""Collects static files into the data folder when they changed since the last time."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from django.conf import settings
from django.core.management import call_command

PACKAGES = ("Django", "djangorestframework", "drf-spectacular-sidecar", "django-htmx", "whitenoise")
STAMP = ".collected"


def ensure_static_files() -> bool:
    """True if they had to be collected. The stamp is written last, so that a cut run is done again."""
    root = Path(settings.STATIC_ROOT)
    stamp, wanted = root / STAMP, _digest_sources()
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    root.mkdir(parents=True, exist_ok=True)
    # htmx's optional extensions import it by a bare name, which no hashed file can carry.
    call_command("collectstatic", interactive=False, verbosity=0, ignore_patterns=["django_htmx/ext/*"])
    stamp.write_text(wanted)
    return True


def _digest_sources() -> str:
    digest = hashlib.sha256()
    for name in PACKAGES:
        digest.update(f"{name} {version(name)}\n".encode())
    for folder in settings.STATICFILES_DIRS:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                found = path.stat()
                digest.update(f"{path.relative_to(folder)} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
