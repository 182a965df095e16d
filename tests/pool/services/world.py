"""A small pool made through the services: a node with a sim runtime, a model, releases and their rows."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pool.models import (
    Device,
    DeviceMemory,
    Model,
    Node,
    NodeLease,
    Release,
    Replica,
    Runtime,
    Version,
    VersionPresence,
)
from pool.services.audit import Actor
from pool.services.catalog import (
    ReleaseWish,
    VersionWish,
    create_model,
    create_profile,
    create_release,
    create_version,
)
from pool.services.lanes import LaneWish
from pool.services.routing import create_routing_state

SECRET = "test-secret-key-that-is-long-enough"
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ACTOR = Actor("world", "bootstrap")
GIB = 2**30


@dataclass
class World:
    node: Node
    model: Model
    version: Version
    releases: list[Release]


def make_node(name: str = "node-a", *, now: datetime = NOW) -> Node:
    node = Node.objects.create(name=name, facts={"run_dir": "/tmp/sluice-world", "stale_engines": 0})
    NodeLease.objects.create(
        node=node, holder=uuid.uuid4(), renewed_at=now, until=now + timedelta(seconds=10)
    )
    device = Device.objects.create(node=node, index=0, uuid="cpu", kind="cpu", name="CPU")
    DeviceMemory.objects.create(
        device=device,
        total_bytes=16 * GIB,
        free_bytes=12 * GIB,
        ours_bytes=0,
        foreign_bytes=4 * GIB,
        measured_at=now,
    )
    Runtime.objects.create(node=node, name="sim-1", kind="sim", interpreter="python", version="1")
    return node


def make_world(*, releases: int = 1, replicas: int = 0) -> World:
    create_routing_state("i-test")
    node = make_node()
    model = create_model(
        "chatty",
        lanes=[LaneWish("short", 512, 8, 300), LaneWish("long", None, 2, 2000)],
        owner="ops",
        actor=ACTOR,
    )
    version = create_version(model.name, VersionWish(source="path:chatty"), actor=ACTOR)
    VersionPresence.objects.filter(version=version).update(phase="present", path="/models/chatty")
    create_profile("plain", {"max_num_seqs": 8}, digest="d" * 64, actor=ACTOR)
    made = [
        create_release(model.name, ReleaseWish("v1", "sim-1", {"": "plain"}, replicas), actor=ACTOR)
        for _ in range(releases)
    ]
    return World(node, model, version, made)


def make_replica(world: World, *, release: int = 1, **values: object) -> Replica:
    defaults: dict[str, object] = {
        "id": f"r{uuid.uuid4().hex[:10]}",
        "release": world.releases[release - 1],
        "phase_entered_at": NOW,
    }
    if values.get("phase", "pending") not in ("pending", "stopped", "failed"):
        defaults |= {"node": world.node, "generation": 1, "address": "unix:/tmp/x.sock", "engine": "running"}
    return Replica.objects.create(**(defaults | values))
