"""A prompt's history: when it was solved, and links that keep the page's state."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.prompts import PromptRunHistory

register = template.Library()


@register.simple_tag
def solved_count(history: PromptRunHistory) -> str:
    """`31 of 40 steps`."""
    solved, evaluated = len(history.solved_steps), len(history.evaluated_steps)
    return _("{solved} of {judged}").format(solved=f"{solved:,}", judged=f"{evaluated:,}") if evaluated else ""


@register.simple_tag
def solved_history(history: PromptRunHistory) -> SafeString:
    """Whether and when at least one response solved the prompt."""
    count = len(history.steps)
    sampled = ngettext("sampled at {count} step", "sampled at {count} steps", count).format(count=f"{count:,}")
    if not history.evaluated_steps:
        unknown = _("correctness unknown")
        return format_html('<span>{}</span><span class="muted">{}</span>', sampled, unknown)
    if not history.solved_steps:
        return format_html('<span class="tag bad">{}</span><span>{}</span>', _("NEVER SOLVED"), sampled)
    first, last = history.solved_steps[0].step, history.solved_steps[-1].step
    details = render_step_text(_("first solved at step {step}"), first) + format_html("<span>{}</span>", sampled)
    if history.regressed:
        last_solved = render_step_text(_("last solved at step {step}"), last)
        return format_html('<span class="tag bad">{}</span>', _("REGRESSED")) + last_solved + details
    since = describe_solved_since(history)
    return format_html('<span class="tag good">{}</span><span>{}</span>', _("SOLVED"), since) + details


def render_step_text(text: str, step: int) -> SafeString:
    """`text` with its `{step}` in bold."""
    return format_html("<span>{}</span>", format_html(text, step=format_html("<b>{}</b>", step)))


def describe_solved_since(history: PromptRunHistory) -> str:
    """Since which step every step has solved the prompt; the last one has."""
    steps = history.evaluated_steps
    last_unsolved = next((step.step for step in reversed(steps) if not step.solved), None)
    if last_unsolved is None:
        return _("at every step")
    first = next(step.step for step in steps if step.step > last_unsolved)
    is_first_time = first == history.solved_steps[0].step
    text = _("since step {step}") if is_first_time else _("again since step {step}")
    return text.format(step=first)


@register.simple_tag(takes_context=True)
def prompt_link(context: template.Context, **changes: object) -> str:
    """`?…` of the prompt page's state with `changes`."""
    return str(context["prompt_state"].link(**{name: str(value) for name, value in changes.items()})) or "?"
