"""The screens that can be watched, by the name in the socket's path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from console.live.screens.memory import build_memory
from console.live.screens.model import build_model, build_models
from console.live.screens.nodes import build_nodes
from console.live.screens.overview import build_overview
from console.live.screens.replica import build_replica, build_replicas
from console.live.screens.replica_memory import build_replica_memory
from console.live.screens.replica_profile import build_replica_profile
from console.live.screens.rollout import build_rollout, build_rollouts
from console.live.screens.rows import Tree
from console.live.screens.traffic_control import build_traffic_control
from pool.services.errors import not_found

SCREENS: Final[Mapping[str, Callable[[str], Tree]]] = {
    "overview": build_overview,
    "models": build_models,
    "model": build_model,
    "replicas": build_replicas,
    "replica": build_replica,
    "nodes": build_nodes,
    "memory": build_memory,
    "replicamemory": build_replica_memory,
    "replicaprofile": build_replica_profile,
    "rollouts": build_rollouts,
    "rollout": build_rollout,
    "control": build_traffic_control,
}
"""Each takes the argument of the path (a name, an id, a filter; empty: none) and raises NotFound."""


def build_screen(name: str, argument: str) -> Tree:
    build = SCREENS.get(name)
    if build is None:
        raise not_found("screen", name)
    return build(argument)
