"""What is said of samples and curves where no markup can be: a sample in one line for people elsewhere."""

from __future__ import annotations

from django import template
from django.utils.translation import gettext as _

from dashboard.pages.common import formatting as text
from dashboard.pages.findings import presenter as shown_finding
from dashboard.pages.findings import svg_chart as charted
from rollouts.models import Sample

register = template.Library()
register.filter("short", charted.short)


@register.filter
def chat_head(sample: Sample) -> str:
    """`grpo · train step 12 · score 0.10 · expected 75 · 116 tok`."""
    step = sample.step
    held = {"tokens": sample.tokens, "chars": sample.chars, "truncated": sample.truncated, "index": sample.index}
    expected = _("expected {value}").format(value=sample.expected) if sample.expected else ""
    facts = shown_finding.facts({**held, "data_source": sample.data_source})
    head = [
        step.run.name,
        _("{split} step {step}").format(split=step.split, step=step.step),
        shown_finding.scored(sample.score),
        expected,
        *facts,
    ]
    return text.bare(" · ".join(one for one in head if one))
