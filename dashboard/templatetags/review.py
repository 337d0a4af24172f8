"""The review queue's links, and how far it is."""

from typing import Any

from django import template
from django.utils.translation import gettext as _

from dashboard.pages.common import StepUrlState
from rollouts.review import ReviewBatch

register = template.Library()


@register.simple_tag
def progress(batch: ReviewBatch) -> str:
    """`3 of 40 · 7 %`"""
    text = _("{done} of {count} · {share} %")
    return text.format(done=batch.reviewed_count, count=len(batch.samples), share=batch.reviewed_percent)


@register.simple_tag(takes_context=True)
def look_at(context: template.Context, **changes: Any) -> str:
    """`?…` of another sample of this queue, or of another batch."""
    params = {name: str(value) for name, value in changes.items()}
    reset = {"sel": ""} if set(params) == {"sel"} else {"sel": "", "ids": ""}
    return str(context["review_state"].link(**reset | params))


@register.simple_tag(takes_context=True)
def queue_link(context: template.Context) -> str:
    """The queue's query on the page of all steps."""
    result = context["result"]
    state, queue = result.state, result.queue_request.queue
    q = result.batch.query if result.batch else state.q
    return StepUrlState(split=state.split, q=q, sort=queue.ordering.replace("order", "")).link()
