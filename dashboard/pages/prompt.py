"""One prompt over the steps of a run: what was asked, and all that was answered, newest first."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import access
from dashboard.pages import listing, panels, strip
from dashboard.pages.ask import Ask
from rollouts import bodies
from rollouts.models import Run, Sample

PANELS = {"strip": "parts/strip.html", "alive": "parts/alive.html", "answers": "prompt/answers.html"}
MOST = 400


@login_required
@require_safe
def prompt(request: HttpRequest, uid: str, key: str) -> HttpResponse:
    run = access.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    found = samples(run, key)
    if not found:
        raise Http404("This run has no such prompt.")
    return panels.answer(
        request,
        "prompt/page.html",
        PANELS,
        lambda: context(request, run, found) | {"status": status},
        *(run.version, status, role),
    )


def samples(run: Run, key: str) -> list[Sample]:
    if "\0" in key:
        return []
    rows = Sample.objects.visible().filter(prompt_key=key, step__run=run).select_related("step__run", "dump")
    return list(rows.order_by("-step__step", "step__split", "score", "pk")[:MOST])


def context(request: HttpRequest, run: Run, found: list[Sample]) -> dict[str, Any]:
    ask = Ask.of(request.GET)
    split = ask.split or found[0].step.split
    steps = [
        {"step": step, "rows": listing.rows(rows)}
        for step, rows in ((step, list(rows)) for step, rows in groupby(found, key=lambda sample: sample.step))
        if step.split == split
    ]
    return {
        "run": run, "project": run.project, "ask": ask, "split": split, "strip": strip.of(run, split), "current": None,
        "steps": steps, "body": bodies.read(found[:1])[found[0].pk], "tab": "samples", "more": len(found) == MOST,
    }  # fmt: skip
