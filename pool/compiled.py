"""The gateway's hot modules as machine code, where the launcher has compiled them (docs/adr/0007).

The same sources serve both ways. A process that finds `SLUICE_COMPILED_DIR` loads what lies there instead of the
sources, if it was made from just these sources; every other process, and a host without a C compiler, runs them as
they are. Standard library only: this comes before every other import of ours.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
STAMP = "sources.sha256"
MODULES = (
    "pool.domain.affinity", "pool.domain.breaker", "pool.domain.concurrency", "pool.domain.growth",
    "pool.domain.histogram", "pool.domain.parameters", "pool.domain.prefill", "pool.domain.progress",
    "pool.domain.qos", "pool.domain.quarantine", "pool.domain.rate_limits", "pool.domain.repetition",
    "pool.domain.retries", "pool.domain.routing", "pool.domain.token_estimate", "pool.domain.traffic",
    "pool.domain.watermarks", "pool.gateway.accounting", "pool.gateway.admission", "pool.gateway.answer",
    "pool.gateway.answer_cache", "pool.gateway.arrival", "pool.gateway.ask", "pool.gateway.attempt",
    "pool.gateway.auth", "pool.gateway.barriers", "pool.gateway.caching", "pool.gateway.choice",
    "pool.gateway.chunks", "pool.gateway.early_end", "pool.gateway.endings", "pool.gateway.events", "pool.gateway.fact",
    "pool.gateway.facts", "pool.gateway.gaps", "pool.gateway.guards", "pool.gateway.heads", "pool.gateway.held",
    "pool.gateway.holds", "pool.gateway.limits", "pool.gateway.metrics", "pool.gateway.openai", "pool.gateway.opening",
    "pool.gateway.overdue", "pool.gateway.places", "pool.gateway.plane", "pool.gateway.reading.body",
    "pool.gateway.reading.prompt", "pool.gateway.regions", "pool.gateway.relay", "pool.gateway.replicas",
    "pool.gateway.request", "pool.gateway.response", "pool.gateway.restraints", "pool.gateway.retrying",
    "pool.gateway.routes", "pool.gateway.server", "pool.gateway.shadow", "pool.gateway.tallies", "pool.gateway.tickets",
    "pool.gateway.timeline", "pool.gateway.totals", "pool.gateway.upstream", "pool.gateway.usage",
)  # fmt: skip
"""What runs once per request or per chunk."""


class CompiledFinder(MetaPathFinder):
    """Finds extension modules by their full name."""

    def __init__(self, folder: Path) -> None:
        suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
        self._files = {
            str(path.relative_to(folder)).partition(".")[0].replace(os.sep, "."): str(path)
            for path in folder.rglob("*")
            if path.name.endswith(suffixes)
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        loader = importlib.machinery.ExtensionFileLoader(fullname, file)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


def hash_sources() -> str:
    """Of what is compiled, and of what it is compiled for."""
    digest = hashlib.sha256(f"{sys.version} {os.uname().machine}".encode())
    for name in MODULES:
        digest.update(name.encode() + b"\0" + source_of(name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def source_of(module: str) -> Path:
    return ROOT / (module.replace(".", os.sep) + ".py")


def use_compiled(folder: str | None) -> bool:
    """True if modules of ours are loaded from there from now on."""
    if not folder:
        return False
    try:
        made_from = (Path(folder) / STAMP).read_text()
    except OSError:
        return False
    if made_from != hash_sources():
        return False
    sys.meta_path.insert(0, CompiledFinder(Path(folder)))
    return True
