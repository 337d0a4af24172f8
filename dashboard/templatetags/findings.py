"""Samples and curves as plain text without markup."""

from __future__ import annotations

from django import template
from django.utils.translation import gettext as _

from dashboard.pages.common import replace_control_characters
from dashboard.pages.findings import describe_sample, describe_score, format_short_number
from rollouts.models import Sample

register = template.Library()
register.filter("short", format_short_number)


@register.filter
def sample_headline(sample: Sample) -> str:
    """`grpo · train step 12 · score 0.10 · expected 75 · 116 tok`."""
    step = sample.step
    names = ("tokens", "chars", "truncated", "index", "data_source")
    expected = _("expected {value}").format(value=sample.expected) if sample.expected else ""
    details = describe_sample({name: getattr(sample, name) for name in names})
    parts = [
        step.run.name,
        _("{split} step {step}").format(split=step.split, step=step.step),
        describe_score(sample.score),
        expected,
        *details,
    ]
    return replace_control_characters(" · ".join(part for part in parts if part))
