"""Engine profiles and where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from pool.models import Profile


@dataclass(frozen=True)
class ProfileRow:
    name: str
    settings: dict[str, object]
    digest: str
    comment: str
    created_at: datetime
    used_by: tuple[str, ...]
    """Releases as `model/number`."""


def list_profiles(*, limit: int = 500, offset: int = 0) -> tuple[ProfileRow, ...]:
    """By name. 2 to 4 queries: none for the uses where there are no uses."""
    return _rows(Profile.objects.order_by("name")[offset : offset + limit])


def find_profile(name: str) -> ProfileRow | None:
    return next(iter(_rows(Profile.objects.filter(name=name))), None)


def _rows(rows: QuerySet[Profile]) -> tuple[ProfileRow, ...]:
    return tuple(
        ProfileRow(
            name=row.name,
            settings=row.settings,
            digest=row.digest,
            comment=row.comment,
            created_at=row.created_at,
            used_by=tuple(
                sorted({f"{use.release.model.name}/{use.release.number}" for use in row.uses.all()})
            ),
        )
        for row in rows.prefetch_related("uses__release__model")
    )
