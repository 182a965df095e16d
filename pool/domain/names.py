"""Names of objects: they stand in URLs, file names and metrics, so they are short and plain."""

from __future__ import annotations

import re
from typing import ClassVar

from pool.domain.errors import PoolError

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"


class InvalidName(PoolError):
    code: ClassVar[str] = "invalid_name"


def check_name(kind: str, name: str) -> str:
    """The name itself; raises InvalidName with the rule."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidName(
            f"'{name[:80]}' cannot be the name of a {kind}. Use 1 to 63 lower-case letters, digits, '.', '_' or '-', "
            "beginning and ending with a letter or digit.",
            kind=kind,
        )
    return name
