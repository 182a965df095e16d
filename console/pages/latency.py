"""The latency page of a model: where its time goes. The pictures come from the API and the live socket."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.pages.shell import render_page
from pool.domain.cells import STAGES, SeriesKey
from pool.domain.heatmap import ENOUGH_SAMPLES
from pool.domain.histogram import GAMMA, LOWEST_S
from pool.queries.cells import CellFilter, find_series
from pool.queries.models import find_model
from pool.services.errors import not_found

_MOST_CHOICES = 200
"""Names in one list; of more a person finds none."""


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, name: str) -> HttpResponse:
    model = find_model(name)
    if model is None:
        raise not_found("model", name)
    choices = _choices(find_series(CellFilter(model=name)).values(), [lane.name for lane in model.lanes])
    context = {
        "name": name,
        "stages": [{"value": stage, "words": words} for stage, words in stage_words().items()],
        "filters": choices,
        "releases": choices[1]["values"],
        "setup": _setup(name),
    }
    return render_page(request, "latency/page.html", context, nav="models")


def stage_words() -> dict[str, str]:
    """In the order in which a request meets them."""
    words = {
        "queue": _("Queue"),
        "ttft": _("First token"),
        "itl": _("Between tokens"),
        "e2e": _("End to end"),
        "per_token": _("Per output token"),
    }
    return {stage: words[stage] for stage in STAGES}


def _choices(series: Any, lanes: list[str]) -> list[dict[str, Any]]:
    """What cells were ever counted by, and the lanes in force; `all` is what nothing chosen means."""
    keys: list[SeriesKey] = list(series)

    def values(attribute: str, *more: str) -> list[str]:
        found = {str(getattr(key, attribute)) for key in keys} | set(more)
        return sorted(found - {"", "0"}, key=_in_order)[:_MOST_CHOICES]

    return [
        {"name": "lane", "words": _("Lane"), "all": _("all lanes"), "values": values("lane", *lanes)},
        {"name": "release", "words": _("Release"), "all": _("all releases"), "values": values("release")},
        {"name": "replica", "words": _("Replica"), "all": _("all replicas"), "values": values("replica")},
        {"name": "tier", "words": _("Tier"), "all": _("all tiers"), "values": values("tier")},
        {"name": "label", "words": _("Label"), "all": _("all labels"), "values": values("label")},
    ]


def _in_order(value: str) -> tuple[int, str]:
    """Numbers by their size."""
    return (int(value), "") if value.isascii() and value.isdecimal() else (0, value)


def _setup(name: str) -> dict[str, Any]:
    """What the page's script needs besides the query of its address."""
    return {
        "api": f"/api/v1/models/{name}/latency/",
        "socket": f"/live/latency/{name}/",
        "request": reverse("request", args=["__id__"]),
        "gamma": GAMMA,
        "lowest_s": LOWEST_S,
        "enough": {str(quantile): samples for quantile, samples in ENOUGH_SAMPLES.items()},
        "words": _words(),
    }


def _words() -> dict[str, Any]:
    return {
        **_state_words(),
        **picture_words(),
        **_request_words(),
        "parts": _part_words(),
        "clocks": {
            "gateway": _("gateway's clock"),
            "engine": _("engine's clock"),
            "gap": _("gap between the clocks"),
        },
        "estimated": _("estimated from %s %% of the time that engines told of"),
        "requests": _("requests"),
        "all": _("All time"),
        "marked": _("over 20 %"),
    }


def _state_words() -> dict[str, str]:
    return {
        "live": _("live"),
        "now": _("now"),
        "connecting": _("connecting"),
        "polled": _("Redis is silent since %s: the database is asked each second"),
        "behind": _("telemetry is behind by %s"),
        "stale": _("database silent since %s"),
        "lost": _("live feed lost since %s"),
        "refused": _("signed out"),
        "range": _("range of the past"),
    }


def picture_words() -> dict[str, Any]:
    return {
        "loading": _("Loading …"),
        "empty": _("No request ended in this range with these filters."),
        "failed": _("The figures could not be loaded:"),
        "samples": _("samples"),
        "few": _("few samples"),
        "chance": _("may be chance"),
        "noData": _("no request ended here"),
        "minute": _("of the last minute"),
        "wholeRange": _("of the whole range"),
        "ofRelease": _("of release %s"),
        "dropped": _("facts of %s requests were lost on the way: counts are too low"),
        "staleData": _("newest figure is %s old"),
        "titles": {
            "heatmap": _("Time × latency"),
            "difference": _("Share of requests: release %(release)s − release %(base)s"),
            "regions": _("Client region × time"),
        },
        "legends": {
            "heatmap": _("UTC · drag, or arrow keys and Enter: the requests of an area"),
            "difference": _(
                "UTC · grey: may be chance · drag, or arrow keys and Enter: the requests of an area"
            ),
            "regions": _("UTC · grey: few samples"),
        },
        "moreIn": _("release %(release)s − release %(base)s"),
        "unknownRegion": _("%s requests without a region"),
        "chooseReleases": _("Choose two releases that have served requests."),
    }


def _request_words() -> dict[str, Any]:
    return {
        "chosen": _("%s requests"),
        "sampled": _("a random sample of %s %%"),
        "noRequests": _("No record of them: records are kept for 15 days and follow within seconds."),
        "nothingUnusual": _("Nothing sets them apart from the others beyond chance."),
        "more": _("× as frequent"),
        "only": _("only here"),
        "support": _("of them"),
        "attributes": {
            "lane": _("lane"),
            "release": _("release"),
            "replica": _("replica"),
            "node": _("node"),
            "tier": _("tier"),
            "label": _("label"),
            "key": _("key"),
            "region": _("region"),
            "cached_prefix": _("cached prefix"),
        },
    }


def _part_words() -> dict[str, str]:
    return {
        "tokenize": _("Tokenize"),
        "queue": _("Queue in the gateway"),
        "engine_queue": _("Queue in the engine"),
        "prefill": _("Prefill"),
        "decode": _("Decode"),
        "gap": _("Between the clocks"),
        "first_byte": _("To the first byte"),
        "last_byte": _("To the last byte"),
        "stream": _("Client did not read"),
        "other": _("Other"),
    }
