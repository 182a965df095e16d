"""The audit trail: who changed what, when and from where."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from console.access import Right, page_right
from console.pages.shell import render_page
from pool.queries.audit import AuditRow, list_audit

PAGE_ROWS = 50
DEEPEST_OFFSET = 100_000


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest) -> HttpResponse:
    """One row more than shown tells whether there is a next page: the trail is never counted."""
    offset = _read_offset(request)
    chosen = {
        name: request.GET.get(name, "").strip()[:255].replace("\0", "") for name in ("subject", "actor")
    }
    found = list_audit(limit=PAGE_ROWS + 1, offset=offset, **chosen)
    filters = {name: value for name, value in chosen.items() if value}
    context = {
        "entries": [_entry(row) for row in found[:PAGE_ROWS]],
        "chosen": chosen,
        "first": offset + 1,
        "last": offset + min(len(found), PAGE_ROWS),
        "older": urlencode({**filters, "offset": offset + PAGE_ROWS}) if len(found) > PAGE_ROWS else "",
        "newer": urlencode({**filters, "offset": max(offset - PAGE_ROWS, 0)}) if offset else "",
    }
    template = "audit/rows.html" if getattr(request, "htmx", False) else "audit/page.html"
    return render_page(request, template, context, nav="audit")


def _entry(row: AuditRow) -> dict[str, object]:
    parts = [
        words
        for name, value in row.details.items()
        for words in (_change_words(value) if name == "changes" else [f"{name}: {_short(value)}"])
    ]
    return {"row": row, "details": ", ".join(parts)}


def _change_words(changes: object, holder: str = "") -> list[str]:
    """“mid weight: 2 → 3”; a lane that came or went: “mid: added”."""
    if not isinstance(changes, dict):
        return [f"changes: {_short(changes)}"]
    found: list[str] = []
    for name, change in changes.items():
        if isinstance(change, dict):
            found += _change_words(change, f"{name} ")
        elif isinstance(change, list) and len(change) == 2:
            found.append(f"{holder}{name}: {_short(change[0])} → {_short(change[1])}")
        else:
            found.append(f"{holder}{name}: {_short(change)}")
    return found


def _short(value: object) -> str:
    if value is None:
        return _("not set")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:119]}…"


def _read_offset(request: HttpRequest) -> int:
    text = request.GET.get("offset", "0")
    return min(int(text), DEEPEST_OFFSET) if text.isdecimal() and len(text) < 8 else 0
