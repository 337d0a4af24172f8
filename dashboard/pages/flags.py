"""Flagging a sample, and taking a flag back. Without script a form post answers 303 to the page it came from."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_POST

from dashboard import access
from dashboard.pages import opened, panels, reading
from dashboard.pages.back import back
from rollouts import flags
from rollouts.errors import RolloutError
from rollouts.models import Flag, Sample


@login_required
@require_POST
def raise_flag(request: HttpRequest, pk: str) -> HttpResponse:
    sample = opened.sample_of(request, pk)
    access.require_role(request, sample.step.run.project, "annotator")
    said = ""
    try:
        flags.raise_flag(
            sample.pk,
            opened.person(request),
            label=request.POST.get("label") or "bad",
            reason=request.POST.get("reason", ""),
            text=request.POST.get("text", "").strip(),
        )
    except RolloutError as error:
        said = str(error)
    return answered(request, sample, said)


@login_required
@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    visible = Flag.objects.filter(run__in=access.visible_runs(request)).select_related("run__project", "user")
    flag = visible.filter(pk=pk).first()
    if flag is None:
        raise Http404("There is no such flag that you may see.")
    access.require_role(request, flag.run.project, "annotator" if flag.user_id == request.user.pk else "maintainer")
    flags.withdraw(flag, opened.person(request))
    return answered(request, opened.sample_of(request, flag.sample), "")


def answered(request: HttpRequest, sample: Sample, said: str) -> HttpResponse:
    """The sample's flags for the panel that asked; else back to the page."""
    if panels.target(request) != "flags":
        if said:
            messages.error(request, said)
        response = HttpResponseRedirect(back(request, "sample", sample.pk))
        response.status_code = 303
        return response
    role = sample.step.run.project.role_of(request.user)
    shown = reading.flagging(request, sample, reading.flags_of(sample), role)
    return panels.finished(render(request, "sample/flags.html", shown | {"said": said}), "")
