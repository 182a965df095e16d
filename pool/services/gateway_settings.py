"""A model's gateway settings: changed live, stored as what differs from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db import transaction

from pool.domain.gateway_settings import ModelSettings, changed_settings, read_model_settings
from pool.models import Model
from pool.services.audit import Actor, record
from pool.services.errors import not_found
from pool.services.routing import rebuild_table


def set_model_settings(
    model_name: str, settings: Mapping[str, Any], *, actor: Actor, replace: bool = False
) -> ModelSettings:
    """Those named change; with `replace` the others go back to their defaults. Raises InvalidGatewaySettings.

    Settings that are so already change nothing and write no audit row.
    """
    with transaction.atomic():
        model = Model.objects.select_for_update().filter(name=model_name).first()
        if model is None:
            raise not_found("model", model_name)
        before = read_model_settings(model.gateway)
        after = read_model_settings(settings if replace else {**model.gateway, **settings})
        changes = {
            name: [value, asdict(after)[name]]
            for name, value in asdict(before).items()
            if asdict(after)[name] != value
        }
        if changes:
            model.gateway = changed_settings(after)
            model.save(update_fields=["gateway"])
            rebuild_table()
            record(actor, "model.gateway", subject=f"model/{model_name}", changes=changes)
    return after
