"""How a prompt's history is said: when it was solved, and links that keep the page's state."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from rollouts.prompts import Line

register = template.Library()


@register.simple_tag
def solved(line: Line) -> str:
    """`31 of 40 steps`."""
    return f"{len(line.solved):,} of {len(line.judged):,}" if line.judged else ""


@register.simple_tag
def facts(line: Line) -> SafeString:
    """Whether and when the prompt was solved: by one answer at least."""
    asked = f"asked at {len(line.steps):,} step{'s' * (len(line.steps) != 1)}"
    if not line.judged:
        return format_html('<span>{}</span><span class="muted">nothing says which answers are correct</span>', asked)
    if not line.solved:
        return format_html('<span class="tag bad">NEVER SOLVED</span><span>{}</span>', asked)
    first, last = line.solved[0].step, line.solved[-1].step
    told = format_html("<span>first solved at step <b>{}</b></span><span>{}</span>", first, asked)
    if line.regressed:
        lost = format_html('<span class="tag bad">REGRESSED</span><span>last solved at step <b>{}</b></span>', last)
        return lost + told
    return format_html('<span class="tag good">SOLVED</span><span>{}</span>', since(line)) + told


def since(line: Line) -> str:
    """From which step on every step was solved, of a prompt that the last one solves."""
    lost = next((one.step for one in reversed(line.judged) if not one.solved), None)
    if lost is None:
        return "at every step"
    first = next(one.step for one in line.judged if one.step > lost)
    return f"since step {first}" if first == line.solved[0].step else f"again since step {first}"


@register.simple_tag(takes_context=True)
def look_link(context: template.Context, **changes: object) -> str:
    """`?…` of a prompt's page with some of its state changed."""
    return str(context["look"].link(**{name: str(value) for name, value in changes.items()})) or "?"
