"""Stores the routing table with the change that makes it, under one row lock, and offers it for delivery."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import cache

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from pool.domain.routing_table import KeyRoute, ModelRoute, RoutingTable, from_bytes, to_bytes
from pool.models import Model, Plan, Rollout, RoutingState
from pool.queries.routing import load_endings, load_key_routes, load_model_routes, plan_route
from pool.services.delivery import Deliverer, Delivery


@dataclass(frozen=True, order=True)
class TableNumber:
    """Order of routing tables: a restored or new installation raises the epoch."""

    epoch: int
    version: int


@cache
def _deliverer() -> Deliverer:
    return Deliverer(settings.REDIS_URL)


def create_routing_state(installation: str | None = None) -> RoutingState:
    """The one row, made at the first start. The epoch is the time, so that a rebuilt database ranks higher."""
    installation = installation or f"i{secrets.token_hex(8)}"
    epoch = int(timezone.now().timestamp())
    table = RoutingTable(installation=installation, epoch=epoch, version=0, models=(), keys=())
    state, _ = RoutingState.objects.get_or_create(
        pk=1,
        defaults={
            "installation": installation,
            "epoch": epoch,
            "version": 0,
            "body": to_bytes(table, settings.SECRET_KEY),
        },
    )
    return state


def rebuild_table() -> TableNumber:
    """Call inside the transaction that changes routing, after the change. Equal contents keep the number."""
    state = RoutingState.objects.select_for_update().get(pk=1)
    stored = from_bytes(bytes(state.body), settings.SECRET_KEY)
    return _store(state, stored, models=load_model_routes(), keys=load_key_routes())


def put_plan_into_table(model: Model, plan: Plan) -> TableNumber:
    """As `rebuild_table`, after a change of nothing but the plan in force: the rest of the table is what it was, so
    that a rollback costs the same in a large pool as in a small one."""
    state = RoutingState.objects.select_for_update().get(pk=1)
    stored = from_bytes(bytes(state.body), settings.SECRET_KEY)
    route = plan_route(plan)
    old = next((one for one in stored.models if one.name == model.name), None)
    if old is None or not set(route.weights) <= {release.number for release in old.releases}:
        return _store(state, stored, models=load_model_routes(), keys=load_key_routes())
    endings = load_endings(Rollout.objects.filter(model=model))[model.pk]
    new = replace(old, plan=route, endings=endings)
    models = tuple(new if one is old else one for one in stored.models)
    return _store(state, stored, models=models, keys=stored.keys)


def _store(
    state: RoutingState, stored: RoutingTable, *, models: tuple[ModelRoute, ...], keys: tuple[KeyRoute, ...]
) -> TableNumber:
    if (stored.models, stored.keys) == (models, keys):
        return TableNumber(state.epoch, state.version)
    table = RoutingTable(state.installation, state.epoch, state.version + 1, models, keys)
    body = to_bytes(table, settings.SECRET_KEY)
    RoutingState.objects.filter(pk=1).update(version=table.version, body=body, changed_at=timezone.now())
    delivery = Delivery(table.installation, table.epoch, table.version, body)
    transaction.on_commit(lambda: _deliverer().offer(delivery))
    return TableNumber(table.epoch, table.version)


def find_newer_table(epoch: int, version: int) -> bytes | None:
    """The stored bytes if they are newer than (epoch, version); None otherwise."""
    state = RoutingState.objects.get(pk=1)
    if (state.epoch, state.version) <= (epoch, version):
        return None
    return bytes(state.body)


def current_delivery() -> Delivery:
    state = RoutingState.objects.get(pk=1)
    return Delivery(state.installation, state.epoch, state.version, bytes(state.body))


def raise_epoch() -> TableNumber:
    """After a restore from a backup: gateways that hold a table of the lost future follow again."""
    with transaction.atomic():
        state = RoutingState.objects.select_for_update().get(pk=1)
        state.epoch = max(state.epoch + 1, int(timezone.now().timestamp()))
        state.save(update_fields=["epoch"])
        table = from_bytes(bytes(state.body), settings.SECRET_KEY)
        raised = RoutingTable(state.installation, state.epoch, state.version + 1, table.models, table.keys)
        body = to_bytes(raised, settings.SECRET_KEY)
        RoutingState.objects.filter(pk=1).update(version=state.version + 1, body=body)
        delivery = Delivery(state.installation, state.epoch, state.version + 1, body)
        transaction.on_commit(lambda: _deliverer().offer(delivery))
        return TableNumber(state.epoch, state.version + 1)
