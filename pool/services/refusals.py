"""Refused attempts that an administrator wants to know of: paths outside the roots, code that nobody approved."""

from __future__ import annotations

from pool.domain.errors import PoolError
from pool.services.audit import Actor, record

RECORDED = frozenset({"invalid_source", "path_outside_root", "remote_code"})


def record_refusal(actor: Actor, error: PoolError, *, subject: str) -> bool:
    """One audit row for a recorded kind (FC-51); what was asked for is not echoed. Call outside its transaction."""
    if error.code not in RECORDED:
        return False
    record(actor, "refused", subject=subject[:255], code=error.code)
    return True
