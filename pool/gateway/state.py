"""What this process tells pages and metrics of its queues, limits and breakers."""

from typing import TYPE_CHECKING, Any

from pool.gateway.refusals import RateLimited
from pool.gateway.routes import ModelView

if TYPE_CHECKING:
    from pool.gateway.plane import Plane

_SET_ANEW = frozenset(
    ("sluice_queued", "sluice_lane_limit", "pending_requests_growth_ratio", "sluice_breaker_open")
)


def describe_plane(plane: "Plane", now_s: float) -> dict[str, Any]:
    """JSON-able. Of this process alone; None where something is not known."""
    return {
        "models": {
            model.name: _describe_model(plane, model, now_s) for model in plane.routes.models.values()
        },
        "cache": plane.answers.describe(),
        "readers": plane.readers.describe(),
        "limits": plane.limits.describe(now_s),
        "quarantine": plane.quarantine.describe(now_s),
        "sharing": plane.view.describe(now_s),
    }


def set_gauges(plane: "Plane", now_s: float) -> None:
    """From the states that only the clock can look at."""
    metrics = plane.metrics
    # A lane or a replica that is gone must not stand there with its last value.
    metrics.forget_gauges(_SET_ANEW)
    for model in plane.routes.models.values():
        for number, gate in model.gates.items():
            for lane, state in gate.describe(now_s, replicas=False)["lanes"].items():
                labels = {"model": model.name, "release": str(number), "lane": lane}
                metrics.gauge("sluice_queued", **labels).value = float(state["queued"])
                metrics.gauge("sluice_lane_limit", **labels).value = float(state["limit"])
                growth_ratio = state["growth"]["growth_ratio"]
                if growth_ratio is not None:
                    metrics.gauge("pending_requests_growth_ratio", **labels).value = float(growth_ratio)
    for replica in plane.routes.replicas:
        gauge = metrics.gauge("sluice_breaker_open", replica=replica.id)
        gauge.value = 0.0 if replica.breaker.closed else 1.0
    _set_counters(plane)
    readers = plane.readers.describe()
    metrics.counter("sluice_reader_timeouts_total").value = float(readers["timeouts"])
    metrics.counter("sluice_reader_restarts_total").value = float(readers["restarts"])
    metrics.gauge("sluice_degraded", part="tokenizers").value = 1.0 if readers["degraded"] else 0.0
    silent = plane.config.redis_url is not None and not plane.view.is_fresh(now_s)
    metrics.gauge("sluice_degraded", part="redis").value = 1.0 if silent else 0.0
    metrics.gauge("sluice_degraded", part="usage").value = 0.0 if plane.usage.is_on_disk else 1.0
    metrics.gauge("sluice_facts_queued").value = float(len(plane.facts))
    metrics.facts_dropped = plane.facts.dropped


def _set_counters(plane: "Plane") -> None:
    """Of what others count by themselves, where a look-up for each request would cost more than it is worth."""
    counter = plane.metrics.counter
    counter("sluice_received_bytes_total").value = float(plane.received_bytes)
    counter("sluice_sent_bytes_total").value = float(plane.sent_bytes)
    counter("sluice_usage_overflow_total").value = float(plane.usage.overflowed)
    counter("sluice_texts_dropped_total").value = float(plane.captures.dropped)
    for model in plane.routes.models.values():
        for number, index in model.indexes.items():
            labels = {"model": model.name, "release": str(number)}
            counter("sluice_affinity_expected_tokens_total", **labels).value = float(index.expected_tokens)
            counter("sluice_affinity_cached_tokens_total", **labels).value = float(index.cached_tokens)
    for name, tally in plane.answers.describe()["models"].items():
        for result in ("hits", "shared_hits", "coalesced", "misses"):
            counter("sluice_answer_cache_total", model=name, result=result).value = float(tally[result])


def _describe_model(plane: "Plane", model: ModelView, now_s: float) -> dict[str, Any]:
    requests, tokens = plane.shadows.cost_of(model.name)
    return {
        "releases": {
            str(number): {
                "gate": gate.describe(now_s),
                "affinity": model.indexes[number].describe(),
                "replicas": {
                    replica.id: {
                        "breaker": replica.breaker.describe(now_s),
                        "hung": replica.watch.share_fact(now_s),
                        "waiting": replica.waiting,
                        "kv_used_ratio": replica.kv_used_ratio,
                        "gauges_age_s": _age_of(replica.gauges_at_s, now_s),
                    }
                    for replica in model.replicas[number]
                },
            }
            for number, gate in model.gates.items()
        },
        "rate_limited": plane.metrics.count_outcome(model.name, RateLimited.code),
        "retries": model.budget.describe(now_s),
        "shadow": {"requests": requests, "tokens": tokens},
    }


def _age_of(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(max(0.0, now_s - at_s), 1)
