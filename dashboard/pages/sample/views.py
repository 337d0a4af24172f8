"""The page of one sample, and its panels."""

from dataclasses import replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.image_response import build_image_response
from dashboard.pages.common import (
    StepUrlState,
    build_split_param,
    load_blind_queues,
    load_step_strip,
    render_page_or_panel,
)
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
    sample = permissions.sample_or_404(request, pk)
    run = sample.step.run
    role, status = run.project.role_of(request.user), run.status
    return render_page_or_panel(
        request,
        "sample/page.html",
        PANELS,
        lambda panel: build_sample_context(request, sample, role, panel) | {"status": status},
        *(run.version, status, role, run.project.reasons, load_blind_queues(request).queues),
    )


@login_required
@require_safe
def sample_image_view(request: HttpRequest, pk: str, digest: str) -> HttpResponse:
    """An image of the sample's run, for users who may see the sample."""
    return build_image_response(request, permissions.sample_or_404(request, pk).step.run.image_owner, digest)


def build_sample_context(request: HttpRequest, sample: Sample, role: str, panel: str) -> dict[str, Any]:
    step, run = sample.step, sample.step.run
    state = replace(StepUrlState.from_query(request.GET), split=build_split_param(run, step.split))
    context = {"run": run, "project": run.project, "url_state": state, "tab": "samples"}
    context |= {"split": step.split, "current": step.step}
    if panel == "flags":
        return context | pane.build_flags_context(request, sample, pane.load_sample_labels(sample, request.user), role)
    if panel == "pin":
        return context | build_pin_box(run, step, role)
    if panel == "sample":
        return context | pane.build_pane_context(request, sample, state, role)
    context["strip"] = load_step_strip(run, step.split)
    if panel in {"strip", "alive"}:
        return context
    return context | build_pin_box(run, step, role) | pane.build_pane_context(request, sample, state, role)
