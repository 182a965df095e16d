"""Expected failures that several services share. `code` never changes; the edge turns it into a status."""

from __future__ import annotations

from typing import ClassVar

from pool.domain.errors import PoolError


class NotFound(PoolError):
    code: ClassVar[str] = "not_found"


class Conflict(PoolError):
    code: ClassVar[str] = "conflict"


class Invalid(PoolError):
    code: ClassVar[str] = "invalid"


def not_found(kind: str, name: object) -> NotFound:
    return NotFound(
        f"There is no {kind} '{name}'. Check the name in the list of {kind}s.", kind=kind, name=str(name)
    )
