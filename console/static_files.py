"""Static files in the data folder, where the web server finds them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command

SOURCES = "sources.sha256"
"""What the collected files were made from; written last, so that a cut collection is made again."""


def ensure_static_files() -> bool:
    """Collects them where nobody did, and anew after the code was updated. True if so."""
    root = Path(settings.STATIC_ROOT)
    mark, sources = root / SOURCES, digest_sources()
    if mark.exists() and mark.read_text() == sources:
        return False
    root.mkdir(parents=True, exist_ok=True)
    # Cleared: a source that is older than what was collected from another version would be left out.
    call_command("collectstatic", interactive=False, verbosity=0, clear=True)
    mark.write_text(sources)
    return True


def digest_sources() -> str:
    """Of names and contents of all that would be collected."""
    digest = hashlib.sha256()
    for finder in get_finders():
        for path, storage in sorted(finder.list([]), key=lambda found: str(found[0])):
            with storage.open(path) as file:
                digest.update(f"{path}\0".encode() + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()
