"""Stores what gateways say of themselves, whichever way it came."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pool.models import GatewayInstance, GatewaySnapshot
from pool.services.errors import Invalid

KEPT_FIELDS = ("in_flight", "nodes", "replicas", "releases", "limits", "at")
_LONGEST_ID = 64
_LARGEST = 2**62


def note_beat(beat: Mapping[str, Any], *, via: str, now: datetime) -> None:
    """One statement, no audit row: it is a sample, not a change. Raises Invalid for another shape."""
    try:
        row = _row(beat, via=via, now=now)
    except (KeyError, TypeError, ValueError) as exc:
        raise Invalid("The heartbeat has another shape: gateway and console differ in version.") from exc
    fields = [field.name for field in GatewayInstance._meta.concrete_fields if not field.primary_key]
    GatewayInstance.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["id"], update_fields=fields
    )


def note_state(identity: str, state: Mapping[str, Any], *, now: datetime) -> None:
    """What pages show of a gateway that does not reach Redis. One statement, no audit row. Raises Invalid."""
    if not _is_identity(identity):
        raise Invalid("A gateway's id has 1 to 64 printable characters.")
    GatewaySnapshot.objects.bulk_create(
        [GatewaySnapshot(id=identity, at=now, body=dict(state))],
        update_conflicts=True, unique_fields=["id"], update_fields=["at", "body"],
    )  # fmt: skip


def _is_identity(identity: str) -> bool:
    return 1 <= len(identity) <= _LONGEST_ID and identity.isprintable()


def _row(beat: Mapping[str, Any], *, via: str, now: datetime) -> GatewayInstance:
    identity = str(beat["id"])
    if not _is_identity(identity):
        raise ValueError(identity)
    return GatewayInstance(
        id=identity,
        host=str(beat.get("host") or "")[:255],
        pid=_whole(beat["pid"]) if beat.get("pid") else None,
        started_at=_time(beat.get("started_at")),
        epoch=_whole(beat.get("epoch") or 0),
        version=_whole(beat.get("version") or 0),
        applied_at=_time(beat.get("applied_at")),
        seen_at=now,
        via=via,
        draining=bool(beat.get("draining")),
        gone_at=None,
        report={name: beat[name] for name in KEPT_FIELDS if name in beat},
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(value)
    return value


def _time(value: object) -> datetime | None:
    if value is None:
        return None
    at = datetime.fromisoformat(str(value))
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def note_gone(gateway: GatewayInstance, *, now: datetime) -> None:
    """Its death was observed; a beat that came meanwhile wins."""
    GatewayInstance.objects.filter(pk=gateway.pk, seen_at=gateway.seen_at).update(gone_at=now)
