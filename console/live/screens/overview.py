"""The pool at a glance: one sentence, what needs attention, models, replicas, nodes, gateways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.alert_words import evidence_words, level_word, rule_title
from console.live.screens import tones
from console.live.screens.devices import node_row
from console.live.screens.readiness import readiness_cells
from console.live.screens.rows import Tree, gateway_row, reason_of, replica_row, share_rows
from console.live.screens.take_backs import take_back_cells
from console.templatetags.units import format_count, format_gib
from pool.queries.alerts import AlertRow, list_alerts
from pool.queries.models import ModelRow
from pool.queries.overview import Overview, load_overview
from pool.queries.readiness import Readiness, list_readiness
from pool.queries.take_backs import NOTHING, TakeBack, load_take_backs

LOOP_LATE_S = 15
MOST_ALERTS = 20


def build_overview(argument: str = "") -> Tree:
    alerts = list_alerts(is_open=True, limit=MOST_ALERTS)
    now = timezone.now()
    return overview_tree(
        load_overview(now=now), alerts=alerts, readiness=list_readiness(now), takes=load_take_backs()
    )


def overview_tree(
    seen: Overview,
    *,
    alerts: Sequence[AlertRow] = (),
    readiness: Sequence[Readiness] = (),
    takes: Mapping[str, TakeBack] | None = None,
) -> Tree:
    """`takes`: by model; without it no row has a button."""
    back = {told.model: told for told in readiness}
    problems = sorted([*list_problems(seen), *_alert_problems(alerts)], key=_is_not_bad)
    simulated = {(row.model, row.release) for row in seen.replicas if row.engine_kind == "sim"}
    return {
        "headline": headline(seen),
        "tone": _headline_tone(seen, problems),
        "calm": not problems,
        "problems": problems,
        "tiles": _tiles(seen),
        "models": [
            model_row(row, simulated, (takes or {}).get(row.name)) | readiness_cells(back.get(row.name))
            for row in seen.models
        ],
        "no_models": not seen.models,
        "replicas": [replica_row(row) for row in seen.replicas],
        "no_replicas": not seen.replicas,
        "nodes": [node_row(row) for row in seen.nodes],
        "no_nodes": not seen.nodes,
        "gateways": [gateway_row(row) for row in seen.gateways],
        "no_gateways": not seen.gateways,
    }


def headline(seen: Overview) -> str:
    """“3 of 3 replicas ready, 2 gateways on table 42.”"""
    counts = seen.counts
    replicas = ngettext(
        "%(ready)d of %(wanted)d replica ready",
        "%(ready)d of %(wanted)d replicas ready",
        counts.replicas_wanted,
    ) % {"ready": counts.replicas_ready, "wanted": counts.replicas_wanted}
    if seen.table is None:
        return _("%(replicas)s, no routing table yet.") % {"replicas": replicas}
    in_step = sum(1 for row in seen.gateways if row.up_to_date and row.gone_at is None)
    gateways = ngettext("%(count)d gateway", "%(count)d gateways", in_step) % {"count": in_step}
    return _("%(replicas)s, %(gateways)s on table %(table)s.") % {
        "replicas": replicas,
        "gateways": gateways if in_step else _("no gateway"),
        "table": str(seen.table.version),
    }


def _headline_tone(seen: Overview, problems: list[Tree]) -> str:
    if any(problem["tone"] == tones.BAD for problem in problems):
        return tones.BAD
    if problems:
        return tones.WARN
    if seen.counts.replicas_coming:
        return tones.BUSY
    return tones.OK if seen.counts.replicas_wanted else tones.IDLE


def _tiles(seen: Overview) -> Tree:
    counts = seen.counts
    totals = [
        device.memory
        for node in seen.nodes
        for device in node.devices
        if device.memory.total_bytes is not None
    ]
    flights = [row.in_flight for row in seen.gateways if row.gone_at is None and row.in_flight is not None]
    ready_tone = tones.count_tone(
        ready=counts.replicas_ready, wanted=counts.replicas_wanted, failed=counts.replicas_failed
    )
    return {
        "ready": counts.replicas_ready,
        "wanted": counts.replicas_wanted,
        "ready_tone": ready_tone,
        "replica_words": _coming_words(counts.replicas_coming, counts.replicas_failed),
        "in_flight": format_count(sum(flights) if flights else None),
        "nodes_ready": counts.nodes_ready,
        "nodes": counts.nodes,
        "nodes_tone": tones.count_tone(ready=counts.nodes_ready, wanted=counts.nodes),
        "device_words": _("%(usable)d of %(all)d devices usable")
        % {"usable": counts.devices_usable, "all": counts.devices},
        "memory_ours": format_gib(sum(memory.ours_bytes or 0 for memory in totals) if totals else None),
        "memory_total": format_gib(sum(memory.total_bytes or 0 for memory in totals) if totals else None),
    }


def _coming_words(coming: int, failed: int) -> str:
    words = []
    if coming:
        words.append(_("%(count)d coming up") % {"count": coming})
    if failed:
        words.append(_("%(count)d failed") % {"count": failed})
    return ", ".join(words) or _("as wished")


def model_row(row: ModelRow, simulated: set[tuple[str, int]], take: TakeBack | None = None) -> Tree:
    replicas = row.replicas
    shares = share_rows(row.plan, {number: True for model, number in simulated if model == row.name})
    return {
        "id": row.name,
        "href": reverse("model", args=[row.name]),
        **take_back_cells(row.name, take or NOTHING),
        "latency_href": reverse("model-latency", args=[row.name]),
        "owner": row.owner,
        "plan": _("plan %(number)d") % {"number": row.plan.number} if row.plan else _("no plan"),
        "has_plan": row.plan is not None,
        "no_plan": row.plan is None,
        "shares": shares,
        "share_words": ", ".join(str(share["label"]) for share in shares),
        "ready": replicas.ready,
        "wanted": replicas.wanted,
        "tone": tones.count_tone(ready=replicas.ready, wanted=replicas.wanted, failed=replicas.failed),
        "state": _model_state(row),
        "sim": any(share["sim"] for share in shares)
        or any(model == row.name for model, _number in simulated),
    }


def _model_state(row: ModelRow) -> str:
    replicas = row.replicas
    if not replicas.wanted:
        return _("not served")
    if not replicas.ready:
        return _("coming up") if replicas.coming else _("down")
    return _("serving") if replicas.ready >= replicas.wanted else _("reduced")


def list_problems(seen: Overview) -> list[Tree]:
    """What an operator should look at first, worst first."""
    problems = [
        *_replica_problems(seen),
        *_node_problems(seen),
        *_gateway_problems(seen),
        *_loop_problems(seen),
    ]
    return sorted(problems, key=_is_not_bad)


def _is_not_bad(problem: Tree) -> bool:
    return problem["tone"] != tones.BAD


def _alert_problems(alerts: Sequence[AlertRow]) -> list[Tree]:
    """Those that say that something is wrong now; plans and early warnings stay on their own page."""
    return [
        _problem(
            f"alert-{row.id}",
            tones.BAD if row.level == "red" else tones.WARN,
            _("Alert, %(level)s: %(title)s %(where)s: %(evidence)s")
            % {
                "level": level_word(row.level),
                "title": rule_title(row.rule),
                "where": " / ".join(part for part in (row.model, row.lane) if part) or row.subject,
                "evidence": evidence_words(row),
            },
            reverse("alert", args=[row.id]),
        )
        for row in alerts
        if row.level in ("orange", "red") and row.acknowledged_at is None
    ]


def _replica_problems(seen: Overview) -> list[Tree]:
    return [
        _problem(
            f"replica-{row.id}",
            tones.BAD,
            _("Replica %(id)s of %(model)s failed: %(reason)s")
            % {"id": row.id, "model": row.model, "reason": reason_of(row) or _("no reason was given")},
            reverse("replica", args=[row.id]),
        )
        for row in seen.replicas
        if row.phase == "failed" and row.wish == "run"
    ]


def _node_problems(seen: Overview) -> list[Tree]:
    problems = []
    for node in seen.nodes:
        if node.phase in ("unreachable", "replaced"):
            words = _("Node %(name)s is %(phase)s: %(reason)s") % {
                "name": node.name,
                "phase": tones.word(node.phase),
                "reason": node.reason_text or node.reason,
            }
            problems.append(_problem(f"node-{node.name}", tones.BAD, words, reverse("node-list")))
        for device in node.devices:
            if not device.usable:
                words = _("A device of %(node)s is unusable: %(reason)s") % {
                    "node": node.name,
                    "reason": device.reason_text or device.reason,
                }
                problems.append(_problem(f"device-{device.uuid}", tones.BAD, words, reverse("node-list")))
    return problems


def _gateway_problems(seen: Overview) -> list[Tree]:
    problems = []
    for row in seen.gateways:
        if row.gone_at is None and row.seen.state != "measured":
            words = _("Gateway %(id)s is silent. It may still serve from table %(table)s.") % {
                "id": row.id,
                "table": f"{row.epoch}.{row.version}",
            }
            problems.append(
                _problem(f"gateway-{row.id}", tones.WARN, words, reverse("overview") + "#gateways")
            )
    return problems


def _loop_problems(seen: Overview) -> list[Tree]:
    return [
        _problem(
            f"loop-{row.name}",
            tones.WARN,
            _("The loop “%(name)s” has not run for %(age)d s: wishes are stored and wait.")
            % {"name": row.name, "age": row.beat.age_s or 0},
            reverse("overview"),
        )
        for row in seen.loops
        if (row.beat.age_s or 0) > LOOP_LATE_S
    ]


def _problem(key: str, tone: str, words: str, href: str) -> Tree:
    return {"id": key, "tone": tone, "words": words, "href": href}
