"""Keeps what is known of the versions' files on this node: found, hashed once, then watched by their stamps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from django.db.models import Q
from django.utils import timezone

from pool.domain.errors import PoolError
from pool.domain.manifest import FilesBroken, manifest_from_json, stamps_from_json, stamps_to_json
from pool.domain.sources import HubSource, Source, parse_source
from pool.models import Node, Version, VersionPresence
from pool.services.tokenizers import has_tokenizer_use, store_tokenizer
from pool.services.versions import complete_version, ensure_presences, note_presence
from pool.tokenizer_folder import read_tokenizer
from pool.weights import SourceNotFound, locate, read_version, verify_files
from workers.hub import fetch_from_hub
from workers.jobs import Jobs

logger = logging.getLogger(__name__)

LOOK_AGAIN = timedelta(seconds=30)
"""For files that were absent: somebody may have copied them meanwhile."""
WATCH_EVERY = timedelta(seconds=60)
"""For files that are present: their stamps cost a stat each."""


@dataclass
class PresenceKeeper:
    node: Node
    roots: Sequence[Path]
    packages: Mapping[str, Path]
    jobs: Jobs = field(default_factory=Jobs)

    def run_pass(self, now: datetime) -> dict[str, object]:
        ensure_presences(self.node)
        due = VersionPresence.objects.filter(node=self.node, version__retired_at=None).filter(
            Q(phase__in=["wanted", "verifying"])
            | Q(full_check_wanted=True)
            | Q(phase__in=["absent", "broken"], verified_at__lt=now - LOOK_AGAIN)
            | Q(phase="present", verified_at__lt=now - WATCH_EVERY)
        )
        for presence in due.select_related("version"):
            self.jobs.submit(presence.pk, lambda presence=presence: self.check(presence))  # type: ignore[misc]
        return {}

    def check(self, presence: VersionPresence) -> None:
        """One version's files; the outcome is stored with its reason."""
        version = presence.version
        if presence.phase == "wanted" or presence.full_check_wanted:
            note_presence(presence, "verifying", now=timezone.now())
        try:
            folder = self.find_folder(version)
            stamps = self._read_or_verify(version, presence, folder)
        except FilesBroken as exc:
            note_presence(presence, "broken", reason=(exc.code, exc.message), now=timezone.now())
        except (PoolError, OSError) as exc:
            code = exc.code if isinstance(exc, PoolError) else "host_error"
            message = exc.message if isinstance(exc, PoolError) else str(exc.strerror or exc)
            note_presence(presence, "absent", reason=(code, message), now=timezone.now())
        else:
            note_presence(presence, "present", path=str(folder), stamps=stamps, now=timezone.now())

    def find_folder(self, version: Version) -> Path:
        """Raises SourceNotFound, PathOutsideRoots and what the hub's client raises."""
        source: Source = parse_source(version.source, revision=version.revision)
        try:
            return locate(source, roots=self.roots, packages=self.packages)
        except SourceNotFound:
            if not isinstance(source, HubSource):
                raise
        return fetch_from_hub(source, root=self.roots[0])

    def _read_or_verify(
        self, version: Version, presence: VersionPresence, folder: Path
    ) -> dict[str, list[int]]:
        if version.manifest is None or "digest" not in version.manifest:
            reading = read_version(folder, roots=self.roots)
            complete_version(version, manifest=reading.manifest, facts=reading.facts)
            version.refresh_from_db()
        manifest = manifest_from_json(version.manifest or {"files": []})
        stamps = verify_files(
            folder,
            manifest,
            known=stamps_from_json(presence.stamps),
            roots=self.roots,
            full=presence.full_check_wanted,
        )
        if not has_tokenizer_use(version):
            store_tokenizer(version, read_tokenizer(folder, manifest))
        return stamps_to_json(stamps)
