"""Memory: the pool's devices and KV caches, a model's part of them, and one replica down to its blocks."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.live.screens.memory import build_memory
from console.live.screens.memory_bands import owner_words
from console.live.screens.replica_memory import build_replica_memory
from console.pages.shell import render_page
from pool.queries.models import find_model
from pool.services.errors import not_found


@require_safe
@page_right(Right.VIEW)
def show_pool(request: HttpRequest) -> HttpResponse:
    context = {**_shared(""), "screen": build_memory()}
    return render_page(request, "memory/page.html", context, nav="memory", live_path="/live/memory/")


@require_safe
@page_right(Right.VIEW)
def show_model(request: HttpRequest, name: str) -> HttpResponse:
    if find_model(name) is None:
        raise not_found("model", name)
    context = {**_shared(name), "name": name, "screen": build_memory(f"model={name}")}
    return render_page(
        request, "memory/page.html", context, nav="models", live_path=f"/live/memory/model={name}/"
    )


@require_safe
@page_right(Right.VIEW)
def show_replica(request: HttpRequest, replica_id: str) -> HttpResponse:
    context = {
        "screen": build_replica_memory(replica_id),
        "map_words": map_words(),
        "states": _state_words(),
        "socket_path": f"/live/blocks/{replica_id}/",
    }
    return render_page(
        request,
        "memory/replica.html",
        context,
        nav="memory",
        live_path=f"/live/replicamemory/{replica_id}/",
    )


def _shared(model: str) -> dict[str, Any]:
    return {"model": model, "owners": owner_words().items(), "grid_words": grid_words(), "kinds": _kinds()}


def _kinds() -> list[tuple[str, str, str]]:
    """Name, label, and what it says."""
    return [
        ("kv_use", _("KV use"), _("blocks in use ÷ blocks of the cache; reusable ones count as free")),
        ("kv_tail", _("Tail waste"), _("tokens that the held blocks fit and do not hold; 0 under 64 blocks")),
        ("allocator", _("Allocator"), _("inactive split bytes ÷ bytes that torch reserved; CUDA only")),
    ]


def grid_words() -> dict[str, str]:
    """Texts of the heatmap; `%s` is filled in."""
    return {
        "loading": _("loading"),
        "empty": _("No replica has told this in the chosen time."),
        "empty_allocator": _("No replica has told this: torch's caching allocator is of CUDA devices only."),
        "failed": _("The figures cannot be loaded (%s). Trying again."),
        "stale": _("newest sample %s ago"),
        "none": _("no sample"),
        "peak": _("peak %s"),
        "samples": _("%s samples"),
        "left_out": _("%s more replicas with lower values are not shown"),
        "all_lanes": _("all lanes"),
        "release": _("release %s"),
    }


def map_words() -> dict[str, str]:
    """Texts of the block map; `%s` is filled in."""
    return {
        "waiting": _("The worker was asked for the block map; it comes within a second or two."),
        "missing": _("There is no block map: the worker is silent, or the engine has made no step."),
        "unreachable": _("Redis does not answer, so no block map can come. The figures beside it go on."),
        "lost": _("The connection is lost. Trying again."),
        "unreadable": _("A block map came that this page cannot read. Load the page again."),
        "stale": _("scanned %s ago: the engine makes no steps"),
        "scanned": _("scanned %s ago"),
        "unknown": _("Known with the block map."),
        "no_requests": _("No request holds a block."),
        "no_runs": _("No block is free or reusable."),
        "block": _("block %s"),
        "nobody": _("of no request"),
        "one_block": _("1 block"),
        "blocks": _("%s blocks"),
        "tokens": _("%s tokens"),
        "tail": _("%s more fit in the last block"),
        "tail_unknown": _("waste in the last block unknown"),
        "size": _("%s blocks of %t tokens"),
        "runs": _("%s ×"),
        "asked": _("asked; the engine answers at its next step"),
        "segments": _("%s segments, largest first"),
        "segments_more": _("%s segments, largest first; %t smaller ones not shown"),
        "no_segments": _("No answer: an idle engine makes no step. Try again while it works."),
        "segment": _("%s, %t in use"),
        "more": _("%s more requests hold blocks"),
    }


def _state_words() -> list[tuple[str, str]]:
    return [
        ("used", _("in use")),
        ("shared", _("shared by requests")),
        ("reusable", _("reusable")),
        ("free", _("free")),
        ("null", _("null block")),
    ]
