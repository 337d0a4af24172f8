"""How a change from one step to the next is said: by an arrow, a number and whether that is good."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

SAME = mark_safe('<span class="change muted" title="as at the step before">=</span>')
LEAST = {"score": 0.0005, "truncated": 0.0005}


@register.simple_tag
def change(value: float | None, of: str) -> SafeString | str:
    """`▲ 0.03` of a score, `▼ 1.2 pt` of a share; nothing where there was no step before."""
    if value is None:
        return ""
    if abs(value) < LEAST[of]:
        return SAME
    better = value > 0 if of == "score" else value < 0
    shown = f"{abs(value):.3g}" if of == "score" else f"{100 * abs(value):.1f} pt"
    return format_html(
        '<span class="change {}" title="against the step before">{} {}</span>',
        "better" if better else "worse", "▲" if value > 0 else "▼", shown,
    )  # fmt: skip
