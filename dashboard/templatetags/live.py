"""How a change from one step to the next is said: by an arrow, a number and whether that is good."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

register = template.Library()

MIN_CHANGES = {"score": 0.0005, "truncated": 0.0005}


@register.simple_tag
def change(value: float | None, of: str) -> SafeString | str:
    """`▲ 0.03` of a score, `▼ 1.2 pt` of a share; nothing where there was no step before."""
    if value is None:
        return ""
    if abs(value) < MIN_CHANGES[of]:
        return format_html('<span class="change muted" title="{}">=</span>', _("same as the previous step"))
    better = value > 0 if of == "score" else value < 0
    shown = f"{abs(value):.3g}" if of == "score" else _("{points} pt").format(points=f"{100 * abs(value):.1f}")
    return format_html(
        '<span class="change {}" title="{}">{} {}</span>',
        "better" if better else "worse", _("compared with the previous step"), "▲" if value > 0 else "▼", shown,
    )  # fmt: skip
