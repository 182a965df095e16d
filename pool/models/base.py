"""Field types and validators that several tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.validators import RegexValidator
from django.db import models

from pool.domain.names import NAME_PATTERN

validate_name = RegexValidator(
    NAME_PATTERN,
    "Use 1 to 63 lower-case letters, digits, '.', '_' or '-', beginning and ending with a letter or digit.",
)


if TYPE_CHECKING:
    _CharField = models.CharField[str, str]
else:
    _CharField = models.CharField


class NameField(_CharField):
    """A name that stands in a path: 1 to 63 of [a-z0-9._-], checked by the database too."""

    def __init__(self, **kwargs: object) -> None:
        kwargs.setdefault("max_length", 63)
        kwargs.setdefault("validators", [validate_name])
        super().__init__(**kwargs)  # type: ignore[arg-type]


def name_constraint(table: str, field: str = "name") -> models.CheckConstraint:
    return models.CheckConstraint(
        condition=models.Q(**{f"{field}__regex": NAME_PATTERN}), name=f"{table}_{field}_pattern"
    )
