"""The panes of the samples that somebody reads next, several in one answer: they are there before their key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import orjson
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import StepUrlState, clean_param, render_with_deferred, set_cache_headers
from dashboard.pages.sample import pane, related
from dashboard.pages.sample.related import RelatedData
from rollouts.errors import StorageUnavailableError
from rollouts.models import Project, Sample

MAX_PREFETCHED = 16
MAX_PREFETCHED_CHARS = 400_000  # of all responses together; what is longer is fetched when it is wanted


@login_required
@require_safe
def prefetch_panes_view(request: HttpRequest) -> HttpResponse:
    """`?of=id,id` gives {id: what `sample/pane.html` shows}, read as `q`, `view` and the like say. Left out is what
    nobody may see or does not exist, and what is so long that the others would wait for it."""
    ids = clean_param(request.GET.get("of", "")).split(",")[:MAX_PREFETCHED]
    rows = Sample.objects.select_related("step__attempt", "step__run__project")
    found = {one.pk: one for one in rows.filter(pk__in=ids, step__run__in=permissions.visible_runs(request))}
    samples = list(limit_total_chars([found[pk] for pk in ids if pk in found]))
    body = orjson.dumps(render_panes(request, samples))
    return set_cache_headers(HttpResponse(body, content_type="application/json"), "")


def limit_total_chars(samples: Sequence[Sample]) -> Iterator[Sample]:
    left = MAX_PREFETCHED_CHARS
    for one in samples:
        if one.chars <= left:
            left -= one.chars
            yield one


def load_readable_related(samples: Sequence[Sample]) -> dict[str, RelatedData]:
    """Without those whose body cannot be read: they say so themselves when they are opened."""
    try:
        return related.load_related_data(samples)
    except StorageUnavailableError:
        found: dict[str, RelatedData] = {}
        for one in samples:
            with suppress(StorageUnavailableError):
                found |= related.load_related_data([one])
        return found


def render_panes(request: HttpRequest, samples: Sequence[Sample]) -> dict[str, str]:
    known, ask = load_readable_related(samples), StepUrlState.from_query(request.GET)
    roles: dict[Project, str] = {}
    panes: dict[str, str] = {}
    for one in samples:
        if one.pk not in known:
            continue
        project = one.step.run.project
        if project not in roles:
            roles[project] = project.role_of(request.user)
        shown = pane.build_loaded_pane_context(request, one, known[one.pk], ask, roles[project])
        panes[one.pk] = render_with_deferred("sample/pane.html", shown, request)
    return panes
