"""Links of the step page that ask something else of the same place: charts, export, a search that goes on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import template
from django.urls import reverse

from dashboard.pages.common import StepUrlState
from rollouts.query import split_terms

register = template.Library()


@register.simple_tag(takes_context=True)
def query_without(context: template.Context, *keys: str) -> str:
    """The query without what it says of these numbers, for a brush to write after."""
    return str(context["url_state"].query_without(*keys))


@register.simple_tag(takes_context=True)
def range_link(context: template.Context, *keys: str, term: str = "") -> str:
    """The link that puts `term` in place of what the query says of these numbers."""
    return str(context["url_state"].range_link(term, *keys)) or "?"


@register.filter
def has_term(one: Any, url_state: StepUrlState) -> str:
    """For `aria-current`: whether the query holds a bar's term."""
    return "true" if url_state.has_term(one.term) else "false"


@register.simple_tag(takes_context=True)
def beyond_link(context: template.Context) -> str:
    """Where a search of many steps goes on."""
    kept = context["url_state"].link(sel="")
    return f"{kept}{'&' if kept else '?'}beyond={context['result'].horizon}"


@register.simple_tag(takes_context=True)
def place_link(context: template.Context, name: str, **more: str) -> str:
    """An address of the API that asks about this page's samples, all of them or those of its query."""
    ask, row, run = context["url_state"], context["row"], context["run"]
    attempt = row.attempt.key if row and (row.superseded or ask.attempt) else ask.attempt
    kind = row.step_kind if row else ""
    asked = {
        "run": run.uid, "split": context["split"], "step": row.step if row else "all", "step_kind": kind,
        "attempt": attempt, **more,
    }  # fmt: skip
    return f"{reverse(name)}?{urlencode({key: value for key, value in asked.items() if value != ''})}"


@register.simple_tag(takes_context=True)
def export_link(context: template.Context, kind: str) -> str:
    """The result of the query as a file, in the table's order."""
    return place_link(context, "export-samples", q=context["result"].found.query.text, format=kind)


@register.simple_tag(takes_context=True)
def review_link(context: template.Context) -> str:
    """The result of the query as a review queue."""
    ask, row = context["url_state"], context["row"]
    q = split_terms(ask.q).add(f"step:{row.step}") if row else ask.q.strip()
    asked = {"run": context["run"].uid, "split": ask.split, "q": q}
    return f"{reverse('review')}?{urlencode({key: value for key, value in asked.items() if value}, safe=':<>=')}"


@register.filter
def exact(value: float) -> str:
    """A number for a script."""
    return repr(value)
