"""An operator's own limits of the rules on memory, load and shape."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from pool.domain.resource_rules import RULES, read_rule
from pool.models import RuleChange
from pool.services.audit import Actor, record
from pool.services.errors import Invalid, not_found


def change_rule(name: str, settings: Mapping[str, Any], *, actor: Actor, now: datetime) -> None:
    """Replaces what was changed before; empty: the defaults again. `{"off": true}` switches it off."""
    if name not in RULES:
        raise not_found("rule", name)
    if not isinstance(settings.get("off", False), bool):
        raise Invalid("off is true or false.", field="off")
    read_rule(RULES[name], settings)
    with transaction.atomic():
        before = RuleChange.objects.filter(rule=name).values_list("settings", flat=True).first() or {}
        if dict(settings) == before:
            return
        if settings:
            RuleChange.objects.update_or_create(
                rule=name,
                defaults={"settings": dict(settings), "changed_at": now, "changed_by": actor.name},
            )
        else:
            RuleChange.objects.filter(rule=name).delete()
        record(actor, "rule.change", subject=f"rule/{name}", changes={"settings": [before, dict(settings)]})
