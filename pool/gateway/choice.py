"""Model → lane → release → replica of one request: the decision, without sending anything."""

import random
from collections.abc import Collection
from dataclasses import dataclass

from pool.domain.routing import pick_replica
from pool.domain.routing_table import KeyRoute
from pool.domain.traffic import choose_release, choose_spill
from pool.gateway.openai import (
    Ask,
    GatewayError,
    InvalidRequest,
    ModelNotAllowed,
    ModelNotFound,
    NoReadyReplica,
    PinNotAllowed,
    StartingUp,
)
from pool.gateway.replicas import LiveReplica
from pool.gateway.request import Request
from pool.gateway.routes import ModelView, Routes

# English text in the usual vocabularies; only sorts requests into lanes.
_BYTES_PER_TOKEN = 4


@dataclass(slots=True)
class Target:
    """Where a request belongs, before any replica is looked at."""

    model: ModelView
    lane: str
    release: int | None
    pinned: bool


def find_target(routes: Routes, request: Request, ask: Ask, caller: KeyRoute) -> Target:
    """Raises GatewayError."""
    if caller.models is not None and ask.model not in caller.models:
        raise ModelNotAllowed(f"This API key may not use the model {ask.model[:100]!r}.", param="model")
    model = routes.models.get(ask.model)
    if model is None:
        raise ModelNotFound(f"There is no model {ask.model[:100]!r}.", param="model")
    lane = model.find_lane(len(ask.body) // _BYTES_PER_TOKEN)
    pin = _find_pin(model, request, caller)
    if pin is not None:
        return Target(model, lane, pin, pinned=True)
    release = model.sole_release(lane)
    if release is None:
        release = choose_release(model.weights(lane), _sticky_key(request, ask, caller))
    return Target(model, lane, release, pinned=False)


def choose_replica(
    target: Target, *, tried: Collection[LiveReplica], now_s: float
) -> tuple[LiveReplica, bool]:
    """The replica and whether it was spilled from its release. Raises GatewayError."""
    model, lane = target.model, target.lane
    if target.release is not None:
        own = model.list_replicas(target.release, lane)
        replica = pick_replica(own, tried=tried, now_s=now_s, draw=random.random)
        if replica is not None:
            return replica, False
    if not target.pinned:
        replica = _spill(target, tried, now_s)
        if replica is not None:
            return replica, True
    raise _no_replica(model)


def _spill(target: Target, tried: Collection[LiveReplica], now_s: float) -> LiveReplica | None:
    model, lane = target.model, target.lane

    def has_capacity(release: int) -> bool:
        return any(replica not in tried for replica in model.list_replicas(release, lane))

    release = choose_spill(model.weights(lane), has_capacity)
    if release is None:
        return None
    return pick_replica(model.list_replicas(release, lane), tried=tried, now_s=now_s, draw=random.random)


def _no_replica(model: ModelView) -> GatewayError:
    if model.starting:
        return StartingUp(f"The model {model.name!r} is starting up. Try again shortly.")
    return NoReadyReplica(f"The model {model.name!r} has no ready replica now. Try again shortly.")


def _find_pin(model: ModelView, request: Request, caller: KeyRoute) -> int | None:
    wished = request.headers.get(b"x-sluice-release")
    if wished is None:
        return model.plan.pins.get(caller.label) if model.plan is not None else None
    if not caller.may_pin:
        raise PinNotAllowed("This API key may not pin a release.", param="x-sluice-release")
    number = int(wished) if wished.isdigit() and len(wished) < 10 else None
    if number not in model.replicas:
        text = f"The model {model.name!r} has no release {wished[:20].decode('latin-1')!r}."
        raise InvalidRequest(text, param="x-sluice-release")
    return number


def _sticky_key(request: Request, ask: Ask, caller: KeyRoute) -> bytes:
    session = request.headers.get(b"x-sluice-session")
    if session is not None:
        return session
    if ask.user:
        return ask.user.encode()
    return f"{caller.digest}\n{ask.opening}".encode()
