"""How a prompt's history is said: when it was solved, and links that keep the page's state."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.prompts import PromptRunHistory

register = template.Library()


@register.simple_tag
def solved(line: PromptRunHistory) -> str:
    """`31 of 40 steps`."""
    if not line.evaluated_steps:
        return ""
    return _("{solved} of {judged}").format(
        solved=f"{len(line.solved_steps):,}", judged=f"{len(line.evaluated_steps):,}"
    )


@register.simple_tag
def facts(line: PromptRunHistory) -> SafeString:
    """Whether and when the prompt was solved: by one answer at least."""
    steps = len(line.steps)
    asked = ngettext("sampled at {count} step", "sampled at {count} steps", steps).format(count=f"{steps:,}")
    if not line.evaluated_steps:
        unjudged = _("correctness unknown")
        return format_html('<span>{}</span><span class="muted">{}</span>', asked, unjudged)
    if not line.solved_steps:
        return format_html('<span class="tag bad">{}</span><span>{}</span>', _("NEVER SOLVED"), asked)
    first, last = line.solved_steps[0].step, line.solved_steps[-1].step
    told = at_step(_("first solved at step {step}"), first) + format_html("<span>{}</span>", asked)
    if line.regressed:
        lost = at_step(_("last solved at step {step}"), last)
        return format_html('<span class="tag bad">{}</span>', _("REGRESSED")) + lost + told
    return format_html('<span class="tag good">{}</span><span>{}</span>', _("SOLVED"), since(line)) + told


def at_step(said: str, step: int) -> SafeString:
    """A sentence about `{step}`, which stands out."""
    return format_html("<span>{}</span>", format_html(said, step=format_html("<b>{}</b>", step)))


def since(line: PromptRunHistory) -> str:
    """From which step on every step was solved, of a prompt that the last one solves."""
    lost = next((one.step for one in reversed(line.evaluated_steps) if not one.solved), None)
    if lost is None:
        return _("at every step")
    first = next(one.step for one in line.evaluated_steps if one.step > lost)
    said = _("since step {step}") if first == line.solved_steps[0].step else _("again since step {step}")
    return said.format(step=first)


@register.simple_tag(takes_context=True)
def look_link(context: template.Context, **changes: object) -> str:
    """`?…` of a prompt's page with some of its state changed."""
    return str(context["look"].link(**{name: str(value) for name, value in changes.items()})) or "?"
