"""Lanes of a model: written whole or one at a time, live; gateways follow with the next routing table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import transaction

from pool.domain.gateway_settings import (
    InvalidGatewaySettings,
    LaneSettings,
    changed_settings,
    read_lane_settings,
)
from pool.domain.lanes import default_lanes
from pool.domain.names import check_name
from pool.models import Lane, Model, Plan, ReleaseProfile
from pool.queries.lanes import lane_settings
from pool.services.audit import Actor, record
from pool.services.beside_rollouts import list_lanes_of_steps
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.routing import rebuild_table

MOST_LANES = 32
LARGEST_WHOLE = 2**31 - 1
COLUMNS = ("concurrency", "ttft_target_ms")
"""Settings of a lane that have a column of their own."""


@dataclass(frozen=True)
class LaneWish:
    """`max_prompt_tokens` None: up to the context. Lanes are given from short to long."""

    name: str
    max_prompt_tokens: int | None
    concurrency: int
    ttft_target_ms: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other LaneSettings by name; what is absent has its default."""

    def read_settings(self) -> LaneSettings:
        """Raises InvalidGatewaySettings, with the lane in its details."""
        given = {**self.settings, "concurrency": self.concurrency, "ttft_target_ms": self.ttft_target_ms}
        try:
            return read_lane_settings(given)
        except InvalidGatewaySettings as exc:
            raise InvalidGatewaySettings(
                f"Lane '{self.name}': {exc.message}", lane=self.name, **exc.details
            ) from exc


def wish_default_lanes(context_tokens: int | None, **settings: Any) -> list[LaneWish]:
    """`settings` are further LaneSettings of every lane."""
    return [
        LaneWish(
            lane.name,
            lane.max_prompt_tokens,
            lane.concurrency,
            lane.ttft_target_ms,
            {"weight": lane.weight, **settings},
        )
        for lane in default_lanes(context_tokens)
    ]


def set_lanes(model_name: str, lanes: Sequence[LaneWish], *, actor: Actor) -> Model:
    """All lanes at once. The same lanes again change nothing and write no audit row."""
    check_lanes(lanes)
    with transaction.atomic():
        model = _lock_model(model_name)
        _refuse_lost_lanes(model, {lane.name for lane in lanes})
        before = {lane.name: _facts_of(lane) for lane in model.lanes.all()}
        after = {lane.name: _facts_of_wish(lane) for lane in lanes}
        if list(before.items()) == list(after.items()):
            return model
        model.lanes.all().delete()
        write_lanes(model, lanes)
        rebuild_table()
        record(
            actor,
            "model.lanes",
            subject=f"model/{model_name}",
            lanes={lane.name: lane.max_prompt_tokens for lane in lanes},
            changes=_changes(before, after),
        )
    return model


def set_lane(model_name: str, lane_name: str, changes: Mapping[str, Any], *, actor: Actor) -> Model:
    """Only the named settings of one lane (and its edge, `max_prompt_tokens`) change."""
    with transaction.atomic():
        model = _lock_model(model_name)
        lanes = [_wish_of(lane) for lane in model.lanes.all()]
        if lane_name not in {lane.name for lane in lanes}:
            raise not_found("lane", f"{model_name}/{lane_name}")
        wishes = [_merge(lane, changes) if lane.name == lane_name else lane for lane in lanes]
        return set_lanes(model_name, wishes, actor=actor)


def check_lanes(lanes: Sequence[LaneWish]) -> None:
    if not lanes:
        raise Invalid("A model needs at least one lane.")
    if len(lanes) > MOST_LANES:
        raise Invalid(f"A model has at most {MOST_LANES} lanes.")
    problems = []
    for lane in lanes:
        check_name("lane", lane.name)
        problems += _figure_problems(lane)
    problems += _edge_problems(lanes)
    if problems:
        raise Invalid(f"The lanes are refused: {'; '.join(problems)}.", problems=problems)
    for lane in lanes:
        lane.read_settings()


def _edge_problems(lanes: Sequence[LaneWish]) -> list[str]:
    problems = []
    edges = [lane.max_prompt_tokens for lane in lanes]
    if edges[-1] is not None or any(edge is None for edge in edges[:-1]):
        problems.append("exactly the last lane has no upper edge")
    known = [edge for edge in edges if edge is not None]
    if known != sorted(set(known)):
        problems.append("the edges rise from lane to lane")
    if len({lane.name for lane in lanes}) != len(lanes):
        problems.append("each lane has a name of its own")
    return problems


def write_lanes(model: Model, lanes: Sequence[LaneWish]) -> None:
    """Of a model that has none; `lanes` have passed check_lanes."""
    Lane.objects.bulk_create(
        Lane(
            model=model,
            name=lane.name,
            position=position,
            max_prompt_tokens=lane.max_prompt_tokens,
            concurrency=lane.concurrency,
            ttft_target_ms=lane.ttft_target_ms,
            settings=_without_columns(changed_settings(lane.read_settings())),
        )
        for position, lane in enumerate(lanes)
    )


def _lock_model(name: str) -> Model:
    model = Model.objects.select_for_update().filter(name=name).first()
    if model is None:
        raise not_found("model", name)
    return model


def _refuse_lost_lanes(model: Model, names: set[str]) -> None:
    """A lane that a release, the plan in force or a running rollout names cannot go."""
    used = set(
        ReleaseProfile.objects.filter(release__model=model, lane__gt="").values_list("lane", flat=True)
    )
    plan = Plan.objects.filter(in_force__model=model).first()
    lost = sorted((used | set(plan.lanes if plan else ()) | list_lanes_of_steps(model)) - names)
    if lost:
        raise Conflict(
            f"Releases, the plan in force or a running rollout use the lanes {', '.join(lost)}. Keep them, or move off "
            "them first.",
            lanes=lost,
        )


def _figure_problems(lane: LaneWish) -> list[str]:
    edge = 1 if lane.max_prompt_tokens is None else lane.max_prompt_tokens
    if all(1 <= figure <= LARGEST_WHOLE for figure in (edge, lane.concurrency, lane.ttft_target_ms)):
        return []
    return [f"the figures of lane '{lane.name}' are whole numbers from 1 to {LARGEST_WHOLE}"]


def _wish_of(lane: Lane) -> LaneWish:
    return LaneWish(lane.name, lane.max_prompt_tokens, lane.concurrency, lane.ttft_target_ms, lane.settings)


def _merge(lane: LaneWish, changes: Mapping[str, Any]) -> LaneWish:
    given = {"max_prompt_tokens": lane.max_prompt_tokens, **asdict(lane.read_settings()), **changes}
    return LaneWish(
        name=lane.name,
        max_prompt_tokens=given.pop("max_prompt_tokens"),
        concurrency=given.pop("concurrency"),
        ttft_target_ms=given.pop("ttft_target_ms"),
        settings=given,
    )


def _without_columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in COLUMNS}


def _facts_of(lane: Lane) -> dict[str, Any]:
    return {"max_prompt_tokens": lane.max_prompt_tokens, **asdict(lane_settings(lane))}


def _facts_of_wish(lane: LaneWish) -> dict[str, Any]:
    return {"max_prompt_tokens": lane.max_prompt_tokens, **asdict(lane.read_settings())}


def _changes(before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Per lane what changed, as [before, after]; a lane that came or went has only its word."""
    found: dict[str, Any] = {name: "removed" for name in before if name not in after}
    for name, facts in after.items():
        if name not in before:
            found[name] = "added"
            continue
        moved = {
            key: [before[name][key], value] for key, value in facts.items() if before[name][key] != value
        }
        if moved:
            found[name] = moved
    return found
