"""What the routing table is made of, read in a fixed number of queries."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

from django.db.models import QuerySet
from django.utils import timezone

from pool.domain.gateway_settings import read_model_settings
from pool.domain.routing_table import (
    KeyRoute,
    LaneRoute,
    ModelRoute,
    PlanRoute,
    ReleaseRoute,
    ReplicaRoute,
    RestrictionRoute,
)
from pool.models import (
    Key,
    Lane,
    Model,
    Plan,
    PlanInForce,
    Release,
    ReleaseProfile,
    Replica,
    Restriction,
    Rollout,
    Runtime,
)
from pool.queries.lanes import lane_settings

ENDING_PHASES = ("rolling_back", "rolled_back")
KEPT_AFTER_END = timedelta(minutes=10)
COMING_PHASES = ("pending", "starting", "loading", "warming")


def load_model_routes() -> tuple[ModelRoute, ...]:
    lanes: dict[int, list[LaneRoute]] = defaultdict(list)
    for lane in Lane.objects.order_by("model_id", "position"):
        lanes[lane.model_id].append(LaneRoute(lane.name, lane.max_prompt_tokens, lane_settings(lane)))
    plans = {row.model_id: row.plan for row in PlanInForce.objects.select_related("plan")}
    replicas, coming = _load_replicas()
    releases = _load_releases(replicas)
    restrictions = _load_restrictions()
    endings = load_endings(Rollout.objects.all())
    return tuple(
        ModelRoute(
            name=model.name,
            lanes=tuple(lanes[model.pk]),
            plan=plan_route(plans[model.pk]) if model.pk in plans else None,
            releases=tuple(releases[model.pk]),
            starting=coming[model.pk],
            settings=read_model_settings(model.gateway),
            restrictions=tuple(restrictions[model.pk]),
            endings=endings[model.pk],
        )
        for model in Model.objects.order_by("name")
    )


def load_key_routes() -> tuple[KeyRoute, ...]:
    return tuple(
        KeyRoute(
            digest=key.digest,
            name=key.name,
            tier=key.tier,
            models=None if key.allowed_models is None else tuple(key.allowed_models),
            may_pin=key.may_pin,
            label=key.label,
            requests_per_min=key.requests_per_min,
            tokens_per_min=key.tokens_per_min,
            keepalive_s=key.keepalive_s,
            capture_ratio=key.capture_ratio,
        )
        for key in Key.objects.filter(revoked_at=None).order_by("name")
    )


def plan_route(plan: Plan) -> PlanRoute:
    return PlanRoute(
        number=plan.number,
        weights={int(release): percent for release, percent in plan.weights.items()},
        lanes={
            lane: {int(release): percent for release, percent in weights.items()}
            for lane, weights in plan.lanes.items()
        },
        pins={name: int(release) for name, release in plan.pins.items()},
        shadow=plan.shadow,
    )


def _load_replicas() -> tuple[dict[int, list[ReplicaRoute]], dict[int, int]]:
    routes: dict[int, list[ReplicaRoute]] = defaultdict(list)
    coming: dict[int, int] = defaultdict(int)
    rows = Replica.objects.filter(phase__in=[*COMING_PHASES, "ready"]).select_related("release", "node")
    slots = _load_slots()
    for row in rows.order_by("id"):
        if row.phase != "ready":
            coming[row.release.model_id] += row.wish == "run"
            continue
        assert row.node is not None
        routes[row.release_id].append(
            ReplicaRoute(
                id=row.pk,
                generation=row.generation,
                node=row.node.name,
                address=row.address,
                lane=row.lane or None,
                max_model_len=row.max_model_len,
                slots=slots.get((row.release_id, row.lane)),
                kv_tokens=_printed_tokens(row),
            )
        )
    return routes, coming


def _load_restrictions() -> dict[int, list[RestrictionRoute]]:
    routes: dict[int, list[RestrictionRoute]] = defaultdict(list)
    for row in Restriction.objects.filter(ended_at=None, dry_run=False).order_by("id"):
        routes[row.model_id].append(
            RestrictionRoute(row.kind, row.lane, row.value, until=row.until.timestamp())
        )
    return routes


def load_endings(rollouts: QuerySet[Rollout]) -> dict[int, dict[int, int]]:
    """By model: release → tokens, where an operator wants that streams of a candidate that is taken back end soon. The
    wish stays for a while after the rollback: a gateway that was cut off learns of it late."""
    endings: dict[int, dict[int, int]] = defaultdict(dict)
    oldest = timezone.now() - KEPT_AFTER_END
    newest = rollouts.order_by("model_id", "-created_at").distinct("model_id")
    for row in newest.select_related("candidate"):
        tokens = row.streams.get("end_after_tokens")
        if row.phase not in ENDING_PHASES or (row.ended_at is not None and row.ended_at < oldest):
            continue
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
            endings[row.model_id][row.candidate.number] = tokens
    return endings


def _load_slots() -> dict[tuple[int, str], int]:
    """By release and lane, as the profile that its engines started with says."""
    uses = ReleaseProfile.objects.values_list("release_id", "lane", "profile__settings")
    found = {(release_id, lane): settings.get("max_num_seqs") for release_id, lane, settings in uses}
    return {use: slots for use, slots in found.items() if isinstance(slots, int)}


def _printed_tokens(row: Replica) -> int | None:
    printed = row.figures.get("printed")
    tokens = printed.get("kv_cache_tokens") if isinstance(printed, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _load_releases(replicas: dict[int, list[ReplicaRoute]]) -> dict[int, list[ReleaseRoute]]:
    named = [
        int(n)
        for weights in Plan.objects.filter(in_force__isnull=False).values_list("weights", flat=True)
        for n in weights
    ]
    simulated = set(Runtime.objects.filter(kind="sim").values_list("name", flat=True))
    routes: dict[int, list[ReleaseRoute]] = defaultdict(list)
    rows = Release.objects.filter(pk__in=replicas) | Release.objects.filter(
        number__in=named, model__in_force__isnull=False
    )
    rows = rows.select_related("version__tokenizer_use").prefetch_related("profiles__profile")
    for row in rows.order_by("number"):
        # A version whose files nobody has read yet has no row.
        use = getattr(row.version, "tokenizer_use", None)
        routes[row.model_id].append(
            ReleaseRoute(
                number=row.number,
                version=row.version.name,
                profile=", ".join(sorted(use.profile.name for use in row.profiles.all())),
                engine="sim" if row.runtime in simulated else "vllm",
                replicas=tuple(replicas.get(row.pk, ())),
                tokenizer=use.tokenizer_id if use else None,
                chat_template=use.chat_template_id if use else None,
            )
        )
    return routes
