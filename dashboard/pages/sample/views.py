"""One sample on a page of its own, and the pane beside a table."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import StepUrlState, load_step_strip, render_page_or_panel
from dashboard.pages.pins import build_pin_box
from dashboard.pages.sample import pane
from rollouts.models import Sample

PANELS = {
    "sample": "sample/pane.html",
    "flags": "sample/flags.html",
    "pin": "step/pin.html",
    "strip": "common/strip.html",
    "alive": "common/last_update.html",
}


@login_required
@require_safe
def sample_page(request: HttpRequest, pk: str) -> HttpResponseBase:
    one = permissions.sample_or_404(request, pk)
    run = one.step.run
    role, status = run.project.role_of(request.user), run.status
    return render_page_or_panel(
        request,
        "sample/page.html",
        PANELS,
        lambda panel: build_sample_context(request, one, role, panel) | {"status": status},
        *(run.version, status, role, run.project.reasons),
    )


def build_sample_context(request: HttpRequest, one: Sample, role: str, panel: str) -> dict[str, Any]:
    run = one.step.run
    ask = StepUrlState.from_query(request.GET)
    frame = {
        "run": run,
        "project": run.project,
        "url_state": ask,
        "split": one.step.split,
        "current": one.step.step,
        "tab": "samples",
    }
    if panel == "flags":
        return frame | pane.build_flags_context(request, one, pane.load_sample_flags(one), role)
    if panel == "pin":
        return frame | build_pin_box(run, one.step, role)
    if panel == "sample":
        return frame | pane.build_pane_context(request, one, ask, role)
    frame["strip"] = load_step_strip(run, one.step.split)
    if panel in {"strip", "alive"}:
        return frame
    return frame | build_pin_box(run, one.step, role) | pane.build_pane_context(request, one, ask, role)
