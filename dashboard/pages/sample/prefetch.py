"""The panes of the samples that somebody reads next, several in one answer: they are there before their key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import orjson
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import panels, streaming
from dashboard.pages.common.url_state import Ask, clean
from dashboard.pages.sample import pane, related
from dashboard.pages.sample.related import Around
from rollouts.errors import StorageUnavailable
from rollouts.models import Project, Sample

MOST = 16
MOST_CHARS = 400_000  # of all responses together; what is longer is fetched when it is wanted


@login_required
@require_safe
def ahead(request: HttpRequest) -> HttpResponse:
    """`?of=id,id` gives {id: what `sample/pane.html` shows}, read as `q`, `view` and the like say. Left out is what
    nobody may see or does not exist, and what is so long that the others would wait for it."""
    ids = clean(request.GET.get("of", "")).split(",")[:MOST]
    rows = Sample.objects.select_related("step__attempt", "step__run__project")
    found = {one.pk: one for one in rows.filter(pk__in=ids, step__run__in=permissions.visible_runs(request))}
    samples = list(within([found[pk] for pk in ids if pk in found]))
    body = orjson.dumps(drawn(request, samples))
    return panels.finished(HttpResponse(body, content_type="application/json"), "")


def within(samples: Sequence[Sample]) -> Iterator[Sample]:
    left = MOST_CHARS
    for one in samples:
        if one.chars <= left:
            left -= one.chars
            yield one


def beside(samples: Sequence[Sample]) -> dict[str, Around]:
    """Without those whose body cannot be read: they say so themselves when they are opened."""
    try:
        return related.of(samples)
    except StorageUnavailable:
        found: dict[str, Around] = {}
        for one in samples:
            with suppress(StorageUnavailable):
                found |= related.of([one])
        return found


def drawn(request: HttpRequest, samples: Sequence[Sample]) -> dict[str, str]:
    known, ask = beside(samples), Ask.of(request.GET)
    roles: dict[Project, str] = {}
    panes: dict[str, str] = {}
    for one in samples:
        if one.pk not in known:
            continue
        project = one.step.run.project
        if project not in roles:
            roles[project] = project.role_of(request.user)
        shown = pane.dressed(request, one, known[one.pk], ask, roles[project])
        panes[one.pk] = streaming.drawn("sample/pane.html", shown, request)
    return panes
