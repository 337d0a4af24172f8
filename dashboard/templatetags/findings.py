"""What is said of samples and curves where no markup can be: a sample in one line for people elsewhere."""

from __future__ import annotations

from django import template
from django.utils.translation import gettext as _

from dashboard.pages.common import replace_control_characters
from dashboard.pages.findings import describe_sample, describe_score, format_short_number
from rollouts.models import Sample

register = template.Library()
register.filter("short", format_short_number)


@register.filter
def chat_head(sample: Sample) -> str:
    """`grpo · train step 12 · score 0.10 · expected 75 · 116 tok`."""
    step = sample.step
    held = {"tokens": sample.tokens, "chars": sample.chars, "truncated": sample.truncated, "index": sample.index}
    expected = _("expected {value}").format(value=sample.expected) if sample.expected else ""
    facts = describe_sample({**held, "data_source": sample.data_source})
    head = [
        step.run.name,
        _("{split} step {step}").format(split=step.split, step=step.step),
        describe_score(sample.score),
        expected,
        *facts,
    ]
    return replace_control_characters(" · ".join(one for one in head if one))
