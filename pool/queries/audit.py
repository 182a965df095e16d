"""The audit trail, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pool.models import AuditEntry


@dataclass(frozen=True)
class AuditRow:
    id: str
    at: datetime
    actor: str
    source: str
    """page, api, loop or bootstrap."""
    action: str
    subject: str
    details: dict[str, object]
    request_id: str


def list_audit(
    *, limit: int = 100, offset: int = 0, subject: str = "", actor: str = "", action: str = ""
) -> tuple[AuditRow, ...]:
    """`subject` also finds what lies below it (`model/smollm2` finds `model/smollm2/release/1`). 1 query."""
    rows = AuditEntry.objects.order_by("-id")
    if subject:
        rows = rows.filter(subject=subject) | rows.filter(subject__startswith=f"{subject}/")
    if actor:
        rows = rows.filter(actor=actor)
    if action:
        rows = rows.filter(action=action)
    return tuple(
        AuditRow(
            id=str(row.pk),
            at=row.at,
            actor=row.actor,
            source=row.source,
            action=row.action,
            subject=row.subject,
            details=row.details,
            request_id=row.request_id,
        )
        for row in rows[offset : offset + limit]
    )
