"""Small parts of pages that need more than an include: ages, form fields, links of the navigation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django import template
from django.forms import BoundField
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.templatetags.units import UNKNOWN, format_age, format_instant, from_iso, to_iso

register = template.Library()


@register.simple_tag
def age(at: datetime | str | None, cell: str = "", form: str = "ago") -> SafeString:
    """`<time>` with its age in words and the instant in UTC on hover. `cell` names the live cell it follows;
    `form="for"` counts up without "ago".
    """
    moment = from_iso(at)
    words = format_age(moment)
    return format_html(
        '<time class="nowrap" data-age="{}"{} datetime="{}" title="{}">{}</time>',
        form,
        format_html(' data-cell="{}"', cell) if cell else "",
        to_iso(moment),
        "" if moment is None else format_instant(moment),
        UNKNOWN if moment is None else words if form == "ago" else words.removesuffix(" ago"),
    )


@register.simple_tag
def clock(at: datetime | str | None) -> SafeString:
    """The time of day in UTC; the date too when it is not today's."""
    moment = from_iso(at)
    if moment is None:
        return format_html("{}", UNKNOWN)
    return format_html(
        '<time class="nowrap" datetime="{}" title="{}">{}</time>',
        to_iso(moment),
        format_age(moment),
        format_instant(moment),
    )


@register.inclusion_tag("components/field.html")
def field(bound: BoundField, full: bool = False) -> dict[str, object]:
    """A form field with label, hint and its problems, wired for screen readers."""
    described = [f"{bound.auto_id}_hint"] if bound.help_text else []
    if bound.errors:
        described.append(f"{bound.auto_id}_problem")
    attributes: dict[str, str | bool] = {}
    if described:
        attributes["aria-describedby"] = " ".join(described)
    if bound.errors:
        attributes["aria-invalid"] = "true"
    return {
        "field": bound,
        "widget": bound.as_widget(attrs=attributes),
        "full": full,
        "unit": getattr(bound.field, "unit", ""),
        "is_check": getattr(bound.field.widget, "input_type", "") == "checkbox"
        and not getattr(bound.field, "choices", None),
    }


@register.filter
def key_of(mapping: dict[object, object], key: object) -> object:
    return mapping.get(key)


@register.filter("part")
def part_of(row: object, name: str) -> object:
    """A cell whose name is put together; empty in a template's row, which has none yet."""
    return row.get(name, "") if isinstance(row, Mapping) else ""
