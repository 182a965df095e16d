"""What becomes known of a version and of its files on nodes."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from pool.domain.manifest import Manifest, manifest_to_json
from pool.domain.version_facts import ModelFacts, facts_to_json
from pool.models import Node, Version, VersionPresence
from pool.services.catalog import SIMULATED


def ensure_presences(node: Node) -> int:
    """Rows for versions that this node has none for, so that a node that joined later looks for them too."""
    missing = Version.objects.filter(retired_at=None).exclude(presences__node=node)
    made = VersionPresence.objects.bulk_create(
        [
            VersionPresence(version=version, node=node)
            for version in missing.exclude(source__startswith=SIMULATED)
        ],
        ignore_conflicts=True,
    )
    return len(made)


def complete_version(version: Version, *, manifest: Manifest, facts: ModelFacts) -> bool:
    """Writes manifest and facts once; the first node that read the files decides what the version is."""
    with transaction.atomic():
        row = Version.objects.select_for_update().get(pk=version.pk)
        if row.manifest is not None and "digest" in row.manifest:
            return False
        row.manifest = manifest_to_json(manifest)
        if row.facts is None:
            row.facts = facts_to_json(facts)
        row.save(update_fields=["manifest", "facts"])
    return True


def note_presence(
    presence: VersionPresence,
    phase: str,
    *,
    now: datetime,
    path: str = "",
    stamps: dict[str, list[int]] | None = None,
    reason: tuple[str, str] = ("", ""),
) -> None:
    values: dict[str, object] = {"phase": phase, "reason_code": reason[0], "reason_text": reason[1]}
    if phase != "verifying":
        values |= {"verified_at": now, "path": path, "full_check_wanted": False}
    if stamps is not None:
        values["stamps"] = stamps
    VersionPresence.objects.filter(pk=presence.pk).update(**values)
