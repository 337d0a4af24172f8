"""The links of a quick list, and how far it is."""

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
def list_link(context: template.Context, **changes: Any) -> str:
    """`?…` of another sample of this list, or of another batch."""
    params = {name: str(value) for name, value in changes.items()}
    reset = {"sel": ""} if set(params) == {"sel"} else {"sel": "", "ids": ""}
    return str(context["review_state"].link(**reset | params))


@register.simple_tag(takes_context=True)
def query_link(context: template.Context) -> str:
    """The list's query on the page of all steps."""
    result = context["result"]
    state, quick_list = result.state, result.batch_request.quick_list
    q = result.batch.query if result.batch else state.q
    return StepUrlState(split=state.split, q=q, sort=quick_list.ordering.replace("order", "")).link()
