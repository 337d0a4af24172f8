"""The step page: links with the same run, step and query (charts, export, the next part of a search), and tokens."""

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import template
from django.urls import reverse

from dashboard.pages.common import StepUrlState, find_step_kind
from rollouts.indexing import find_missing_tokenizer_command
from rollouts.lib import CacheSize, cached
from rollouts.models import Step, StepTotals
from rollouts.query import split_terms

register = template.Library()


@register.simple_tag(takes_context=True)
def query_without(context: template.Context, *keys: str) -> str:
    """The query without its terms for `keys`; the script of a chart adds the selected range."""
    return str(context["url_state"].query_without(*keys))


@register.simple_tag(takes_context=True)
def range_link(context: template.Context, *keys: str, term: str = "") -> str:
    """The link that replaces the query's terms for `keys` by `term`."""
    return str(context["url_state"].range_link(term, *keys)) or "?"


@register.filter
def has_term(bar: Any, url_state: StepUrlState) -> str:
    """For `aria-current`: whether the query has the bar's term."""
    return "true" if url_state.has_term(bar.term) else "false"


@register.simple_tag(takes_context=True)
def next_part_link(context: template.Context) -> str:
    """The next part of a search of many steps."""
    link = context["url_state"].link(sel="")
    return f"{link}{'&' if link else '?'}beyond={context['result'].matches.cursor}"


@register.simple_tag(takes_context=True)
def api_link(context: template.Context, name: str, **more: str) -> str:
    """A URL of the API for the samples of this page. `more`: further parameters."""
    row, attempt = context["row"], context["url_state"].attempt
    if row and (row.superseded or attempt):
        attempt = row.attempt.key
    step, kind = (row.step, row.step_kind) if row else ("all", find_step_kind(context["run"], context["split"]))
    step_params = {"run": context["run"].uid, "split": context["split"], "step": step, "step_kind": kind}
    params = {**step_params, "attempt": attempt, **more}
    return f"{reverse(name)}?{urlencode({key: value for key, value in params.items() if value != ''})}"


@register.simple_tag(takes_context=True)
def export_link(context: template.Context, kind: str) -> str:
    """The result of the query as a file, in the table's order."""
    return api_link(context, "export-samples", q=context["result"].matches.query.text, format=kind)


@register.simple_tag(takes_context=True)
def export_page_link(context: template.Context) -> str:
    """The page that exports the result of the query in other layouts."""
    return api_link(context, "export", q=context["result"].matches.query.text)


@register.simple_tag(takes_context=True)
def review_link(context: template.Context) -> str:
    """The result of the query as a review queue."""
    url_state, row = context["url_state"], context["row"]
    q = split_terms(url_state.q).add(f"step:{row.step}") if row else url_state.q.strip()
    params = {"run": context["run"].uid, "split": url_state.split, "q": q}
    return f"{reverse('review')}?{urlencode({key: value for key, value in params.items() if value}, safe=':<>=')}"


@register.filter
def exact(value: float) -> str:
    """A number in full precision, for a script."""
    return repr(value)


@register.inclusion_tag("step/tokens.html", takes_context=True)
def token_statistics(context: template.Context, row: Step, totals: StepTotals) -> dict[str, Any]:
    run = context["run"]
    return {"totals": totals, "command": load_tokenizer_command(row, run.created_at, run.version)}


@cached(CacheSize.TOKEN_COMMANDS)
def load_tokenizer_command(step: Step, created_at: datetime, version: int) -> str:
    """`created_at` and `version` of the run are only part of the cache key."""
    return find_missing_tokenizer_command(step)
