"""The audit row that every change writes, in the change's own transaction."""

from __future__ import annotations

from dataclasses import dataclass

from pool.models import AuditEntry


@dataclass(frozen=True)
class Actor:
    """Who acts: a user or a loop, and through what (`page`, `api`, `loop`, `bootstrap`)."""

    name: str
    source: str
    request_id: str = ""


def loop_actor(name: str) -> Actor:
    return Actor(name=name, source="loop")


def record(actor: Actor, action: str, *, subject: str, **details: object) -> None:
    """`subject` is `kind/name`; `details` hold names and numbers, never keys or prompts."""
    AuditEntry.objects.create(
        actor=actor.name,
        source=actor.source,
        request_id=actor.request_id,
        action=action,
        subject=subject,
        details=details,
    )
