"""Models, versions, profiles and releases: registered, never changed afterwards. Lanes are in `lanes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import IntegrityError, transaction
from django.utils import timezone

from pool.domain.names import check_name
from pool.models import (
    Model,
    Node,
    Profile,
    Release,
    ReleaseProfile,
    Replica,
    Runtime,
    Scale,
    Version,
    VersionPresence,
)
from pool.services.audit import Actor, record
from pool.services.beside_rollouts import refuse_scale_below
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.lanes import LaneWish, check_lanes, write_lanes
from pool.services.routing import rebuild_table
from pool.services.unloading import refuse_overload

SIMULATED = "sim:"
"""Sources without files: only a simulated engine serves them."""


@dataclass(frozen=True)
class ReleaseWish:
    """`profiles` maps a lane to a profile's name; the empty lane stands for all lanes."""

    version: str
    runtime: str
    profiles: dict[str, str]
    replicas: int = 0
    comment: str = ""


@dataclass(frozen=True)
class VersionWish:
    """What a source turned out to hold: facts from its config, sizes of its files (hashes may follow)."""

    source: str
    revision: str = ""
    name: str = ""
    manifest: dict[str, object] | None = None
    facts: dict[str, object] | None = None
    remote_code_approved: bool = False
    paths: dict[str, str] = field(default_factory=dict)


def find_model(name: str) -> Model:
    model = Model.objects.filter(name=name).first()
    if model is None:
        raise not_found("model", name)
    return model


def create_model(
    name: str, *, lanes: Sequence[LaneWish], owner: str, actor: Actor, description: str = ""
) -> Model:
    check_name("model", name)
    check_lanes(lanes)
    try:
        with transaction.atomic():
            model = Model.objects.create(name=name, owner=owner, description=description)
            write_lanes(model, lanes)
            rebuild_table()
            record(actor, "model.create", subject=f"model/{name}", lanes=[lane.name for lane in lanes])
    except IntegrityError as exc:
        raise Conflict(f"There is a model '{name}' already.", name=name) from exc
    return model


def create_version(model_name: str, wish: VersionWish, *, actor: Actor) -> Version:
    """Registers weights. `wish.paths` maps nodes that hold the files already to their folder there."""
    with transaction.atomic():
        model = Model.objects.select_for_update().get(pk=find_model(model_name).pk)
        name = wish.name or f"v{Version.objects.filter(model=model).count() + 1}"
        check_name("version", name)
        if Version.objects.filter(model=model, name=name).exists():
            raise Conflict(f"Model '{model_name}' has a version '{name}' already.", name=name)
        version = Version.objects.create(
            model=model,
            name=name,
            source=wish.source,
            revision=wish.revision,
            manifest=wish.manifest,
            facts=wish.facts,
            remote_code_approved=wish.remote_code_approved,
        )
        VersionPresence.objects.bulk_create(
            VersionPresence(version=version, node=node)
            for node in Node.objects.exclude(phase="replaced")
            if not wish.source.startswith(SIMULATED)
        )
        record(
            actor,
            "version.create",
            subject=f"model/{model_name}/version/{name}",
            source=wish.source,
            remote_code_approved=wish.remote_code_approved,
        )
    return version


def retire_version(model_name: str, version_name: str, *, actor: Actor) -> Version:
    """No new release may use it. Refused while a replica of it is wished."""
    with transaction.atomic():
        version = (
            Version.objects.select_for_update().filter(model__name=model_name, name=version_name).first()
        )
        if version is None:
            raise not_found("version", version_name)
        if Replica.objects.filter(release__version=version, wish="run").exists():
            raise Conflict(
                f"Version '{version_name}' is served. Scale its releases to 0 first.", version=version_name
            )
        if version.retired_at is None:
            version.retired_at = timezone.now()
            version.save(update_fields=["retired_at"])
            record(actor, "version.retire", subject=f"model/{model_name}/version/{version_name}")
    return version


def ask_full_check(model_name: str, version_name: str, *, actor: Actor) -> int:
    """Every node that holds the version hashes all its files again. Returns the number of nodes asked."""
    with transaction.atomic():
        version = Version.objects.filter(model__name=model_name, name=version_name).first()
        if version is None:
            raise not_found("version", version_name)
        rows = VersionPresence.objects.filter(version=version)
        asked = rows.update(full_check_wanted=True)
        record(actor, "version.verify", subject=f"model/{model_name}/version/{version_name}", nodes=asked)
    return asked


def create_profile(
    name: str, settings: dict[str, object], *, digest: str, actor: Actor, comment: str = ""
) -> Profile:
    """`settings` and `digest` as checked and made canonical by `pool.domain.profiles`."""
    check_name("profile", name)
    try:
        with transaction.atomic():
            profile = Profile.objects.create(name=name, settings=settings, digest=digest, comment=comment)
            record(actor, "profile.create", subject=f"profile/{name}", digest=digest)
    except IntegrityError as exc:
        raise Conflict(
            f"There is a profile '{name}' already. Profiles never change: choose a new name.", name=name
        ) from exc
    return profile


def create_release(model_name: str, wish: ReleaseWish, *, actor: Actor) -> Release:
    """The next release of the model. Raises Invalid with each broken rule."""
    with transaction.atomic():
        model = Model.objects.select_for_update().get(pk=find_model(model_name).pk)
        version = Version.objects.filter(model=model, name=wish.version).first()
        profiles = {
            profile.name: profile for profile in Profile.objects.filter(name__in=wish.profiles.values())
        }
        problems = _release_problems(model, wish, version, set(profiles))
        if problems or version is None:
            raise Invalid(f"The release is refused: {'; '.join(problems)}.", problems=problems)
        newest = (
            Release.objects.filter(model=model).order_by("-number").values_list("number", flat=True).first()
            or 0
        )
        release = Release.objects.create(
            model=model,
            number=newest + 1,
            version=version,
            runtime=wish.runtime,
            comment=wish.comment,
            created_by=actor.name,
        )
        ReleaseProfile.objects.bulk_create(
            ReleaseProfile(release=release, lane=lane, profile=profiles[name])
            for lane, name in wish.profiles.items()
        )
        Scale.objects.bulk_create(
            Scale(release=release, lane=lane, replicas=wish.replicas) for lane in wish.profiles
        )
        rebuild_table()
        record(
            actor,
            "release.create",
            subject=f"model/{model_name}/release/{release.number}",
            version=version.name,
            profiles=wish.profiles,
            runtime=wish.runtime,
            replicas=wish.replicas,
        )
    return release


def _release_problems(
    model: Model, wish: ReleaseWish, version: Version | None, known_profiles: set[str]
) -> list[str]:
    problems = []
    if version is None:
        problems.append(f"model '{model.name}' has no version '{wish.version}'")
    elif version.retired_at is not None:
        problems.append(f"version '{wish.version}' is retired")
    problems += [f"there is no profile '{name}'" for name in set(wish.profiles.values()) - known_profiles]
    lanes = set(model.lanes.values_list("name", flat=True))
    problems += [
        f"model '{model.name}' has no lane '{lane}'" for lane in wish.profiles if lane and lane not in lanes
    ]
    if not wish.profiles:
        problems.append("a release needs a profile")
    if "" in wish.profiles and len(wish.profiles) > 1:
        problems.append("a release has one profile for all lanes, or one per lane, not both")
    if not Runtime.objects.filter(name=wish.runtime).exists():
        known = ", ".join(sorted(set(Runtime.objects.values_list("name", flat=True)))) or "none yet"
        problems.append(f"no node has a runtime '{wish.runtime}' (known: {known})")
    if not 0 <= wish.replicas <= 512:
        problems.append(f"{wish.replicas} replicas are outside 0 to 512")
    return problems


def set_scale(  # noqa: PLR0913 - one field of the form each
    model_name: str, number: int, *, replicas: int, lane: str, actor: Actor, accept_overload: bool = False
) -> Scale:
    """The wish; the loop makes it true. Raises Conflict if the rest could not carry the present demand, unless that
    is accepted."""
    if not 0 <= replicas <= 512:
        raise Invalid(f"{replicas} replicas are outside 0 to 512.", replicas=replicas)
    with transaction.atomic():
        release = (
            Release.objects.select_related("model").filter(model__name=model_name, number=number).first()
        )
        if release is None:
            raise not_found("release", f"{model_name}/{number}")
        scale = Scale.objects.select_for_update().filter(release=release, lane=lane).first()
        if scale is None:
            lanes = ", ".join(sorted(release.scales.values_list("lane", flat=True))) or "all lanes"
            raise Invalid(f"Release {number} has no profile for lane '{lane}' (it has: {lanes}).", lane=lane)
        refuse_scale_below(release, lane, replicas)
        before = scale.replicas
        if replicas < before and not accept_overload:
            refuse_overload(release, lane, remaining=replicas, now=timezone.now())
        scale.replicas = replicas
        scale.save(update_fields=["replicas"])
        record(
            actor,
            "release.scale",
            subject=f"model/{model_name}/release/{number}",
            lane=lane,
            before=before,
            after=replicas,
            **({"accept_overload": True} if accept_overload else {}),
        )
    return scale
