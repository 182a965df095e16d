"""What a web process refuses so that its live views stay live for everybody."""

from __future__ import annotations

from typing import ClassVar

from pool.domain.errors import PoolError


class TooManyViews(PoolError):
    """So many different live views are open that another one would endanger the others."""

    code: ClassVar[str] = "too_many_requests"

    def __init__(self) -> None:
        super().__init__("Too many different live views are open. Close one, or use the same filters.")
