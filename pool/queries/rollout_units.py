"""Requests of a rollout's two releases, by the block of 10 s in which they ended, as its gates read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import Max

from pool.domain.strata import BLOCK_S, Sample
from pool.models import GatewayInstance, Lane, Plan, Replica, RequestRecord, Rollout, StreamPosition

LONGEST: Final = timedelta(minutes=10)
"""A request that takes longer is not compared; the fixed limits and the health of its replica see it."""
MOST_ROWS: Final = 20_000
"""Per read: what is beyond is left out, the same share of both releases."""
COLD_REQUESTS: Final = 20
COLD_TIME: Final = timedelta(minutes=1)
_COLUMNS: Final = (
    "at", "e2e_s", "lane", "wished_release", "release", "replica", "session", "status", "outcome", "attempts",
    "spilled", "ttft_s", "decode_s", "prompt_tokens", "cached_tokens", "output_tokens", "flags", "label",
)  # fmt: skip
_CUT: Final = frozenset({"interrupted", "late"})
_GONE: Final = frozenset({"client_gone"})


@dataclass(frozen=True)
class Span:
    """Blocks `first` to `last`, both in it."""

    first: int
    last: int

    @property
    def start(self) -> datetime:
        return block_start(self.first)

    @property
    def end(self) -> datetime:
        return block_start(self.last + 1)


def block_of(moment: datetime) -> int:
    return int(moment.timestamp() // BLOCK_S)


def block_start(block: int) -> datetime:
    return datetime.fromtimestamp(block * BLOCK_S, tz=UTC)


def find_read_at() -> datetime | None:
    """When telemetry last counted requests: what ended before a little earlier is stored. None: never."""
    found = StreamPosition.objects.filter(pk__endswith=":facts").aggregate(newest=Max("updated_at"))
    newest: datetime | None = found["newest"]
    return newest


def list_lane_names(rollout: Rollout) -> tuple[str, ...]:
    lanes = Lane.objects.filter(model=rollout.model_id).order_by("pk")
    return tuple(lanes.values_list("name", flat=True))


def load_samples(rollout: Rollout, span: Span, seen: dict[str, int]) -> dict[int, list[Sample]]:
    """By block. `seen`: requests by replica so far; it is counted on. 3 queries."""
    releases = {rollout.candidate.number: True, rollout.stable.number: False}
    pinned = _list_pinned(rollout)
    warm_from = _load_warm_times(rollout)
    rows = RequestRecord.objects.filter(
        model=rollout.model.name,
        at__gte=span.start - LONGEST,
        at__lt=span.end,
        wished_release__in=list(releases),
    ).order_by("at", "request_id")  # fmt: skip
    ended: list[tuple[float, Mapping[str, Any]]] = []
    low, high = span.start.timestamp(), span.end.timestamp()
    for row in rows.values(*_COLUMNS).iterator(chunk_size=2000):
        end_s = row["at"].timestamp() + (row["e2e_s"] or 0.0)
        if low <= end_s < high and row["label"] not in pinned:
            ended.append((end_s, row))
    return _make_blocks(_thin(ended), releases, warm_from, seen)


def _thin(ended: list[tuple[float, Mapping[str, Any]]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Every n-th in the order of arrival: who is kept does not depend on the release."""
    return ended[:: max(1, math.ceil(len(ended) / MOST_ROWS))]


def _make_blocks(
    ended: Iterable[tuple[float, Mapping[str, Any]]],
    releases: Mapping[int, bool],
    warm_from: Mapping[str, datetime],
    seen: dict[str, int],
) -> dict[int, list[Sample]]:
    blocks: dict[int, list[Sample]] = {}
    for end_s, row in sorted(ended, key=lambda pair: pair[0]):
        replica = row["replica"]
        is_cold = replica in warm_from and (
            row["at"] < warm_from[replica] or seen.get(replica, 0) < COLD_REQUESTS
        )
        if replica:
            seen[replica] = min(seen.get(replica, 0) + 1, COLD_REQUESTS)
        sample = read_sample(row, candidate=releases[row["wished_release"]], cold=is_cold)
        blocks.setdefault(int(end_s // BLOCK_S), []).append(sample)
    return blocks


def read_sample(row: Mapping[str, Any], *, candidate: bool, cold: bool) -> Sample:
    """A request that spilled, or that a replica failed before another one served it, is an error of the release that
    it was drawn for, whatever the client saw (FC-45)."""
    interrupted = row["outcome"] in _CUT
    gone = row["outcome"] in _GONE
    failed = row["spilled"] or row["attempts"] > 1 or (row["status"] >= 500 and not interrupted)
    output, prompt = row["output_tokens"], row["prompt_tokens"]
    e2e_s, decode_s = row["e2e_s"], row["decode_s"]
    is_whole = not gone and not failed and not interrupted
    return Sample(
        candidate=candidate,
        lane=row["lane"],
        session=row["session"],
        cached_ratio=row["cached_tokens"] / prompt if prompt and row["cached_tokens"] is not None else None,
        output_tokens=output if is_whole else None,
        error=bool(failed),
        interrupted=interrupted,
        ttft_s=None if failed else row["ttft_s"],
        itl_s=decode_s / (output - 1)
        if is_whole and row["ttft_s"] and decode_s and (output or 0) > 1
        else None,
        per_token_s=e2e_s / output if is_whole and e2e_s is not None and output else None,
        flags=frozenset(row["flags"] or ()),
        cold=cold and not failed,
        sent=row["release"] == row["wished_release"],
    )


def _list_pinned(rollout: Rollout) -> frozenset[str]:
    """Labels that the plan sends to one release: those were not drawn by lot."""
    plan = Plan.objects.filter(model=rollout.model_id, number=rollout.base_plan).first()
    return frozenset(label for label in (plan.pins or {}) if label) if plan is not None else frozenset()


def _load_warm_times(rollout: Rollout) -> dict[str, datetime]:
    """Of replicas that became ready lately: from when on their requests count, once they had some."""
    since = (rollout.weighted_at or rollout.created_at) - COLD_TIME
    rows = Replica.objects.filter(
        release__in=[rollout.candidate_id, rollout.stable_id], ready_at__isnull=False
    ).values_list("pk", "ready_at", "release_id")
    return {
        replica: ready_at + COLD_TIME
        for replica, ready_at, release in rows
        if ready_at is not None and (release == rollout.candidate_id or ready_at > since)
    }


def load_counters(rollout: Rollout) -> dict[str, tuple[int, int]]:
    """By gateway process: (errors, requests) of the candidate since it began, as its beats tell: without Redis too."""
    model, release = rollout.model.name, str(rollout.candidate.number)
    found: dict[str, tuple[int, int]] = {}
    for gateway, report in GatewayInstance.objects.filter(gone_at=None).values_list("pk", "report"):
        counts = ((report.get("releases") or {}).get(model) or {}).get(release)
        if counts:
            failed = sum(int(counts.get(name, 0)) for name in ("errors", "spilled_errors"))
            found[gateway] = (failed, int(counts.get("requests", 0)))
    return found
