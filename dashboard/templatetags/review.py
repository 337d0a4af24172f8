"""The review queue's links, and how far it is."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.translation import gettext as _

from dashboard.pages.common import StepUrlState
from rollouts.review import ReviewBatch

register = template.Library()


@register.simple_tag
def progress(batch: ReviewBatch) -> str:
    """`3 of 40 · 7 %`"""
    told = _("{done} of {count} · {share} %")
    return told.format(done=batch.reviewed_count, count=len(batch.samples), share=batch.reviewed_percent)


@register.simple_tag(takes_context=True)
def look_at(context: template.Context, **changes: Any) -> str:
    """`?…` of another place in this queue, or of another batch of it."""
    told = {name: str(value) for name, value in changes.items()}
    return str(context["look"].link(**{"sel": "", **({} if set(told) == {"sel"} else {"ids": ""}), **told}))


@register.simple_tag(takes_context=True)
def queue_link(context: template.Context) -> str:
    """The queue's query, for the page of all steps."""
    found = context["found"]
    q = found.batch.query if found.batch else found.look.q
    return StepUrlState(split=found.look.split, q=q, sort=found.asked.queue.ordering.replace("order", "")).link()
