"""A model: lanes, versions, releases, the plan in force and those before it; and the list of models."""

from __future__ import annotations

from collections.abc import Mapping

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.overview import model_row
from console.live.screens.plans import plan_rows, rollback_cells, shadow_words
from console.live.screens.readiness import mark_way_back, readiness_cells
from console.live.screens.rows import Tree, gateway_row, hue_of, replica_row, share_rows
from console.live.screens.versions import version_row
from console.templatetags.units import to_iso
from pool.queries.gateways import find_table_state, list_gateways
from pool.queries.models import ModelView, ReleaseRow, ReplicaCount, find_model_view, list_models
from pool.queries.nodes import list_runtimes
from pool.queries.readiness import list_readiness, load_readiness
from pool.queries.replicas import ReplicaRow, list_replicas
from pool.queries.rollout_rows import NewestRollout, find_newest_rollouts
from pool.queries.take_backs import TakeBack, load_take_backs
from pool.services.errors import not_found


def build_models(argument: str = "") -> Tree:
    models = list_models()
    simulated_runtimes = {row.name for row in list_runtimes() if row.kind == "sim"}
    simulated = {
        (row.model, row.release)
        for row in list_replicas(now=timezone.now(), phase="ready")
        if row.runtime in simulated_runtimes
    }
    back = {told.model: told for told in list_readiness(timezone.now())}
    takes = load_take_backs()
    return {
        "models": [
            model_row(row, simulated, takes.get(row.name)) | readiness_cells(back.get(row.name))
            for row in models
        ],
        "no_models": not models,
    }


def build_model(name: str) -> Tree:
    view = find_model_view(name)
    if view is None:
        raise not_found("model", name)
    now = timezone.now()
    replicas = [row for row in list_replicas(now=now, model=name, limit=200) if row.phase != "stopped"]
    simulated = {row.name: row.kind == "sim" for row in list_runtimes()}
    take, rollouts = load_take_backs(name).get(name), find_newest_rollouts(name)
    tree = model_tree(view, replicas, simulated, take=take, rollouts=rollouts)
    told = load_readiness(name, now)
    tree |= readiness_cells(told)
    mark_way_back(tree, told)
    table = find_table_state()
    tree["table"] = str(table.version) if table else _("none yet")
    tree["gateways"] = [gateway_row(row) for row in list_gateways(now=now) if row.gone_at is None]
    tree["no_gateways"] = not tree["gateways"]
    return tree


def model_tree(
    view: ModelView,
    replicas: list[ReplicaRow],
    simulated: Mapping[str, bool],
    *,
    take: TakeBack | None = None,
    rollouts: Mapping[int, NewestRollout] | None = None,
) -> Tree:
    model, plan = view.model, view.model.plan
    sim_releases = {row.number: bool(simulated.get(row.runtime)) for row in view.releases}
    return {
        **model_row(model, set(), take),
        "sim": any(sim_releases.get(int(number)) for number in (plan.weights if plan else {})),
        "description": model.description,
        "plan_number": plan.number if plan else "",
        "plan_comment": plan.comment if plan else "",
        "plan_author": plan.created_by if plan else "",
        "plan_at": to_iso(plan.created_at) if plan else "",
        "plan_shadow": shadow_words(plan),
        **rollback_cells(view.plans),
        "shares": share_rows(plan, sim_releases),
        "lanes": [
            {
                "id": lane.name,
                "edge": _("below %(tokens)s tokens") % {"tokens": f"{lane.max_prompt_tokens:,}"}
                if lane.max_prompt_tokens is not None
                else _("up to the context"),
                "concurrency": lane.concurrency,
                "ttft": f"{lane.ttft_target_ms:,} ms",
            }
            for lane in model.lanes
        ],
        "versions": [version_row(row) for row in view.versions],
        "no_versions": not view.versions,
        "releases": [
            release_row(
                row,
                model.name,
                sim_releases,
                (rollouts or {}).get(row.number),
                is_idle=not (take and take.rollout),
            )
            for row in view.releases
        ],
        "no_releases": not view.releases,
        "plans": plan_rows(view.plans),
        "no_plans": not view.plans,
        "replicas": [replica_row(row) for row in replicas],
        "no_replicas": not replicas,
    }


def release_row(
    row: ReleaseRow,
    model: str,
    simulated: Mapping[int, bool],
    rollout: NewestRollout | None = None,
    *,
    is_idle: bool = True,
) -> Tree:
    return {
        "id": str(row.number),
        "hue": hue_of(row.number),
        "name": _("release %(number)d") % {"number": row.number},
        "version": row.version,
        "runtime": row.runtime,
        "sim": bool(simulated.get(row.number)),
        "profiles": ", ".join(
            profile if not lane else f"{lane}: {profile}" for lane, profile in sorted(row.profiles.items())
        ),
        "comment": row.comment,
        "author": row.created_by,
        "created_at": to_iso(row.created_at),
        "weight": f"{row.weight_percent} %",
        "has_weight": row.weight_percent > 0,
        "has_rollout": rollout is not None,
        "rollout": rollout.phase.replace("_", " ") if rollout else "",
        "rollout_tone": tones.rollout_tone(rollout.phase) if rollout else "",
        "rollout_href": reverse("rollout", args=[rollout.id]) if rollout else "",
        "can_roll_out": is_idle and row.weight_percent == 0,
        "roll_out_href": f"{reverse('rollout-new', args=[model])}?candidate={row.number}",
        "counts": [_count_row(row, count) for count in row.counts],
    }


def _count_row(release: ReleaseRow, count: ReplicaCount) -> Tree:
    lane = count.lane or ""
    return {
        "id": lane or "all",
        "lane": lane or _("all lanes"),
        "lane_name": lane,
        "release": release.number,
        "ready": count.ready,
        "wanted": count.wanted,
        "tone": tones.count_tone(ready=count.ready, wanted=count.wanted, failed=count.failed),
        "state": _count_words(count),
        "risk": "yes" if release.weight_percent > 0 else "no",
    }


def _count_words(count: ReplicaCount) -> str:
    words = [
        _("%(count)d coming up") % {"count": count.coming} if count.coming else "",
        _("%(count)d failed") % {"count": count.failed} if count.failed else "",
        _("%(count)d draining") % {"count": count.draining} if count.draining else "",
    ]
    return ", ".join(word for word in words if word) or (_("as wished") if count.wanted else _("none wished"))
