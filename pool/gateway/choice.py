"""Model → lane → release of one request, and which replica of it is picked: decisions, without sending anything."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from pool.domain.affinity import PrefixIndex
from pool.domain.routing import choose_by_score
from pool.domain.routing_table import KeyRoute
from pool.domain.traffic import choose_release, choose_spill
from pool.gateway.admission import Pick
from pool.gateway.ask import Ask, sticky_key
from pool.gateway.openai import (
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

if TYPE_CHECKING:
    from pool.gateway.admission import Gate
    from pool.gateway.relay import Exchange
    from pool.gateway.routes import ModelView, Routes


# An engine that did not say how much its context holds.
_UNBOUNDED = 1 << 40
# Telemetry keeps sessions as whole numbers of 31 bits.
_SESSION_BITS: Final = 0x7FFF_FFFF


def make_pick(index: PrefixIndex) -> Pick:
    """For one release's gate. Prefixes count where the request brings its blocks."""

    def pick(candidates: Sequence[LiveReplica], ticket: Any, now_s: float) -> LiveReplica | None:
        for replica in candidates:
            if not replica.breaker.closed:
                # Its trial is due: with nobody sent there, it could not show that it is well again.
                return replica
        return choose_by_score(
            candidates, ticket, now_s=now_s, draw=random.random, index=index if ticket.blocks else None
        )

    return pick


def find_model(routes: "Routes", name: str, caller: KeyRoute) -> "ModelView":
    """Raises GatewayError."""
    if caller.models is not None and name not in caller.models:
        raise ModelNotAllowed(f"This API key may not use the model {name[:100]!r}.", param="model")
    model = routes.models.get(name)
    if model is None:
        raise ModelNotFound(f"There is no model {name[:100]!r}.", param="model")
    return model


def find_pin(model: "ModelView", request: Request, caller: KeyRoute) -> int | None:
    """The release that the caller, or the plan for the caller, insists on. Raises GatewayError."""
    wished = request.headers.get(b"x-sluice-release")
    if wished is None:
        return model.plan.pins.get(caller.label) if model.plan is not None and model.plan.pins else None
    if not caller.may_pin:
        raise PinNotAllowed("This API key may not pin a release.", param="x-sluice-release")
    number = int(wished) if wished.isdigit() and len(wished) < 10 else None
    if number not in model.gates:
        text = f"The model {model.name!r} has no release {wished[:20].decode('latin-1')!r}."
        raise InvalidRequest(text, param="x-sluice-release")
    return number


def find_release(model: "ModelView", ask: Ask, ticket: "Exchange") -> int | None:
    """By the plan's weights, the same for all requests of a session; None if no release has weight."""
    weights = model.weights(ticket.lane)
    if len(weights) == 1:
        return next((release for release, weight in weights.items() if weight > 0), None)
    key = sticky_key(ask, ticket.request, ticket.caller)
    ticket.session = crc32(key) & _SESSION_BITS
    return choose_release(weights, key)


def find_gate(
    model: "ModelView", lane: str, release: int | None, ticket: "Exchange", *, pinned: bool, now_s: float
) -> "tuple[int, Gate]":
    """The gate of the wished release, or of the one that it spills to. Raises GatewayError."""
    gate = model.gates.get(release) if release is not None else None
    if gate is not None and release is not None and gate.can_serve(ticket, now_s):
        return release, gate
    if not pinned:
        other = choose_spill(
            model.weights(lane),
            lambda number: number in model.gates and model.gates[number].can_serve(ticket, now_s),
        )
        if other is not None:
            return other, model.gates[other]
        release = _find_largest(model, lane) or release
        gate = model.gates.get(release) if release is not None else None
    if gate is not None and release is not None and any(model.replicas[release]):
        # It says what is wrong: too long for every context, or all of them tried.
        return release, gate
    raise no_replica(model)


def _find_largest(model: "ModelView", lane: str) -> int | None:
    """The release with weight whose context holds most: what is too long for it is too long."""
    found = {
        release: max(one.max_model_len or _UNBOUNDED for one in model.replicas[release])
        for release, weight in model.weights(lane).items()
        if weight > 0 and model.replicas.get(release)
    }
    return max(found, key=found.__getitem__, default=None)


def no_replica(model: "ModelView") -> GatewayError:
    if model.starting:
        return StartingUp(f"The model {model.name!r} is starting up. Try again shortly.")
    return NoReadyReplica(f"The model {model.name!r} has no ready replica now. Try again shortly.")
