"""The audit trail: who changed what, when and from where."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
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
    details = ", ".join(f"{name}: {_short(value)}" for name, value in row.details.items())
    return {"row": row, "details": details}


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:119]}…"


def _read_offset(request: HttpRequest) -> int:
    text = request.GET.get("offset", "0")
    return min(int(text), DEEPEST_OFFSET) if text.isdecimal() and len(text) < 8 else 0
