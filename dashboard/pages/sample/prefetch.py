"""The panes of the samples that the user is likely to open next, several in one response."""

from collections.abc import Sequence
from contextlib import suppress

import orjson
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import StepUrlState, clean_param, render_with_deferred, set_cache_headers
from dashboard.pages.sample import pane, related
from dashboard.pages.sample.related import RelatedData
from rollouts.errors import StorageUnavailableError
from rollouts.models import Sample

MAX_PREFETCHED = 16
MAX_PREFETCHED_CHARS = 400_000  # of all responses together; a longer one is loaded when it is opened


@login_required
@require_safe
def prefetch_panes_view(request: HttpRequest) -> HttpResponse:
    """`?of=id,id` returns {id: HTML of `sample/pane.html`}; `q`, `view` and other parameters apply to all. Samples that
    do not exist, are not visible to the user, or are too long are left out."""
    ids = clean_param(request.GET.get("of", "")).split(",")[:MAX_PREFETCHED]
    rows = Sample.objects.select_related("step__attempt", "step__run__project")
    visible = {row.pk: row for row in rows.filter(pk__in=ids, step__run__in=permissions.visible_runs(request))}
    samples, left = [], MAX_PREFETCHED_CHARS
    for sample in (visible[pk] for pk in ids if pk in visible):
        if sample.chars <= left:
            left -= sample.chars
            samples.append(sample)
    body = orjson.dumps(render_panes(request, samples))
    return set_cache_headers(HttpResponse(body, content_type="application/json"), "")


def load_readable_related(samples: Sequence[Sample], reader: User | AnonymousUser) -> dict[str, RelatedData]:
    """Without the samples whose body cannot be read; their pane shows the error when it is opened."""
    try:
        return related.load_related_data(samples, reader)
    except StorageUnavailableError:
        readable: dict[str, RelatedData] = {}
        for sample in samples:
            with suppress(StorageUnavailableError):
                readable |= related.load_related_data([sample], reader)
        return readable


def render_panes(request: HttpRequest, samples: Sequence[Sample]) -> dict[str, str]:
    readable, state = load_readable_related(samples, request.user), StepUrlState.from_query(request.GET)
    projects = {sample.step.run.project for sample in samples if sample.pk in readable}
    roles = {project: project.role_of(request.user) for project in projects}
    panes: dict[str, str] = {}
    for sample in samples:
        if data := readable.get(sample.pk):
            role = roles[sample.step.run.project]
            context = pane.build_loaded_pane_context(request, sample, data, state, role)
            panes[sample.pk] = render_with_deferred("sample/pane.html", context, request)
    return panes
