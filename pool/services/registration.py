"""PLACEHOLDER until the real one lands."""

from __future__ import annotations

import hashlib
import json

from pool.models import Profile, Release, Version
from pool.services import catalog
from pool.services.audit import Actor
from pool.services.catalog import ReleaseWish, VersionWish


def register_version(
    model: str,
    source: str,
    *,
    revision: str = "",
    name: str = "",
    approve_remote_code: bool = False,
    actor: Actor,
) -> Version:
    return catalog.create_version(
        model,
        VersionWish(source=source, revision=revision, name=name, remote_code_approved=approve_remote_code),
        actor=actor,
    )


def register_profile(name: str, settings: dict[str, object], *, comment: str = "", actor: Actor) -> Profile:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return catalog.create_profile(name, settings, digest=digest, actor=actor, comment=comment)


def register_release(model: str, wish: ReleaseWish, *, actor: Actor) -> Release:
    return catalog.create_release(model, wish, actor=actor)
