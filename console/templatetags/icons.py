"""The few line icons of the console, drawn inline so that they take the text's colour."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

_PATHS = {
    "overview": '<rect x="2" y="2" width="5" height="5" rx="1.2"/><rect x="9" y="2" width="5" height="5" rx="1.2"/>'
    '<rect x="2" y="9" width="5" height="5" rx="1.2"/><rect x="9" y="9" width="5" height="5" rx="1.2"/>',
    "models": '<path d="M8 1.8 13.6 5v6L8 14.2 2.4 11V5z"/><path d="M2.6 5.1 8 8.2l5.4-3.1M8 8.2v5.8"/>',
    "replicas": '<rect x="2" y="2.5" width="12" height="4.5" rx="1.2"/>'
    '<rect x="2" y="9" width="12" height="4.5" rx="1.2"/>'
    '<path d="M4.7 4.75h.01M4.7 11.25h.01M7.5 4.75h4M7.5 11.25h4"/>',
    "nodes": '<rect x="3.5" y="3.5" width="9" height="9" rx="1.5"/><path d="M6.3 6.3h3.4v3.4H6.3z"/>'
    '<path d="M6 1.3v2.2M10 1.3v2.2M6 12.5v2.2M10 12.5v2.2M1.3 6h2.2M1.3 10h2.2M12.5 6h2.2M12.5 10h2.2"/>',
    "requests": '<path d="M2 4h5M4 8h7M9 12h5"/>',
    "memory": '<rect x="1.8" y="4.5" width="12.4" height="6" rx="1.2"/><path d="M4.6 6.6v1.8M8 6.6v1.8M11.4 6.6v1.8"/>'
    '<path d="M4 10.5v2M8 10.5v2M12 10.5v2"/>',
    "profiles": '<path d="M2 4.5h6.5M12.5 4.5H14M2 11.5h1.5M7.5 11.5H14"/><circle cx="10.5" cy="4.5" r="2"/>'
    '<circle cx="5.5" cy="11.5" r="2"/>',
    "keys": '<circle cx="5" cy="11" r="3.2"/><path d="m7.3 8.7 6.2-6.2M11 5l2 2"/>',
    "playground": '<path d="M2.5 3h11v8h-6L4.2 13.6V11H2.5z"/><path d="M5.3 6h5.4M5.3 8.3h3.4"/>',
    "alerts": '<path d="M4 11V7a4 4 0 0 1 8 0v4l1.3 1.5H2.7zM6.5 14.2h3"/>',
    "slos": '<circle cx="8" cy="8" r="6"/><circle cx="8" cy="8" r="2.6"/><path d="M8 8l4.6-4.6"/>',
    "audit": '<path d="M3.5 1.8h6.2l2.8 2.9v9.5h-9z"/><path d="M5.8 7.2h4.4M5.8 9.5h4.4M5.8 11.8h2.6"/>',
    "moon": '<path d="M13.5 9.6A6 6 0 0 1 6.4 2.5a6 6 0 1 0 7.1 7.1z"/>',
    "sun": '<circle cx="8" cy="8" r="2.8"/><path d="M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13'
    'M3 13l1.2-1.2M11.8 4.2 13 3"/>',
    "leave": '<path d="M6.5 2.5h-4v11h4M10.5 5 13.5 8l-3 3M6 8h7.2"/>',
    "user": '<circle cx="8" cy="5.2" r="2.7"/><path d="M2.8 14c.6-3 2.6-4.4 5.2-4.4s4.6 1.4 5.2 4.4"/>',
    "back": '<path d="M6 3.5 2.5 7 6 10.5M2.8 7h6.7a4 4 0 0 1 0 8H7"/>',
    "plus": '<path d="M8 3v10M3 8h10"/>',
    "copy": '<rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M10.5 3.4V2.5h-8v8h.9"/>',
    "close": '<path d="m4 4 8 8M12 4l-8 8"/>',
    "send": '<path d="M2.5 8 13.5 2.8 10.8 13.4 7.6 9z"/><path d="M7.6 9l5.9-6.2"/>',
    "stop": '<rect x="4" y="4" width="8" height="8" rx="1.5"/>',
    "alert": '<path d="M8 2 14.6 13.5H1.4z"/><path d="M8 6.4v3.2M8 11.6h.01"/>',
    "check": '<path d="m3 8.4 3.3 3.3L13 4.8"/>',
}


@register.simple_tag
def icon(name: str, size: int = 16) -> SafeString:
    """Decoration only: the word stands beside it or in the button's label."""
    return format_html(
        '<svg width="{}" height="{}" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" '
        'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">{}</svg>',
        size,
        size,
        mark_safe(_PATHS[name]),
    )
