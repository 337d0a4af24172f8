"""The pin box of a step: whether it is pinned, how far its bytes have come, and pinning it with one key."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import (
    get_requested_panel,
    get_return_url,
    get_signed_in_user,
    redirect_see_other,
    role_allows,
    set_cache_headers,
)
from dashboard.pages.pins import pin_list, replay_labels
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Pin, Run, Step
from rollouts.pins import (
    explain_nothing_to_pin,
    find_pin,
    find_replayable_artifacts,
    load_pin_status,
    remove_pin,
    update_pin_note,
)
from rollouts.replay import pin_into_plan


def build_pin_box(run: Run, row: Step | None, role: str, said: str = "") -> dict[str, Any]:
    """The context of `step/pin.html`; empty where no single step is shown."""
    if row is None:
        return {}
    row.run = run
    pin, may_pin = find_pin(row), role_allows(role, "maintainer")
    return {
        "run": run,
        "project": run.project,
        "role": role,
        "pinnable": row,
        "may_pin": may_pin,
        "said": said,
        "replay": replay_labels.load_replay_labels([row]).get(row.pk),
        **(
            {"pin": pin, "pin_state": pin_list.build_pin_status_label(pin, load_pin_status(pin))}
            if pin
            else {"pin": None, "nothing": explain_unpinnable(run, row) if may_pin else ""}
        ),
    }


def explain_unpinnable(run: Run, row: Step) -> str:
    """Why the step cannot be pinned; empty when it can."""
    if not run.artifacts.exists():
        return explain_nothing_to_pin(run, row.step, None)
    found, prompts = find_replayable_artifacts(run, row.attempt, row.split, row.step_kind, row.step)
    return "" if found else explain_nothing_to_pin(run, row.step, prompts)


@login_required
@require_POST
def pin_step_view(request: HttpRequest, uid: str) -> HttpResponse:
    """Pins the step that the form names; with a target step it also enters the project's default plan."""
    run = permissions.run_or_404(request, uid)
    permissions.require_role(request, run.project, "maintainer")
    row = step_or_404(run, request)
    said = ""
    try:
        pin_into_plan(
            run,
            row.step,
            get_signed_in_user(request),
            split=row.split,
            attempt=row.attempt.key,
            step_kind=row.step_kind,
            note=request.POST.get("note", "").strip(),
            target_step=parse_target_step(request),
        )
    except RolloutError as error:
        said = str(error)
    return respond_with_pin_box(request, run, row, said)


def step_or_404(run: Run, request: HttpRequest) -> Step:
    told = {name: request.POST.get(name, "").replace("\0", "") for name in ("split", "step_kind", "step", "attempt")}
    if not (told["step"].removeprefix("-").isdecimal() and told["step"].isascii() and len(told["step"]) < 19):
        raise Http404(_("Step not found."))
    steps = run.steps.filter(split=told["split"], step_kind=told["step_kind"], step=int(told["step"]))
    row = steps.select_related("attempt").filter(attempt__key=told["attempt"]).first()
    if row is None:
        raise Http404(_("Step not found in this run."))
    return row


def parse_target_step(request: HttpRequest) -> int | None:
    """Raises BadInput."""
    typed = request.POST.get("target_step", "").strip()
    if not typed:
        return None
    if not (typed.isascii() and typed.isdigit() and len(typed) < 16):
        raise InvalidInputError(_("The target step must be a whole number, for example 3."), "target_step")
    return int(typed)


@login_required
@require_POST
def edit_pin_note_view(request: HttpRequest, pk: int) -> HttpResponse:
    pin = pin_or_404(request, pk)
    try:
        update_pin_note(pin, get_signed_in_user(request), request.POST.get("note", "").strip())
    except RolloutError as error:
        messages.error(request, str(error))
    return redirect_see_other(get_return_url(request, "pins"))


@login_required
@require_POST
def unpin_step_view(request: HttpRequest, pk: int) -> HttpResponse:
    pin = pin_or_404(request, pk)
    said = ""
    try:
        remove_pin(pin, get_signed_in_user(request))
    except RolloutError as error:
        said = str(error)
    place = {name: getattr(pin, name) for name in ("run", "attempt", "split", "step_kind", "step")}
    return respond_with_pin_box(request, pin.run, Step.objects.filter(**place).select_related("attempt").first(), said)


def pin_or_404(request: HttpRequest, pk: int) -> Pin:
    """A pin that the person may change."""
    seen = Pin.objects.filter(run__in=permissions.visible_runs(request), removed_at=None)
    pin: Pin | None = seen.select_related("run__project", "attempt", "user").filter(pk=pk).first()
    if pin is None:
        raise Http404(_("Pin not found, or you have no access to it."))
    permissions.require_role(request, pin.run.project, "maintainer")
    return pin


def respond_with_pin_box(request: HttpRequest, run: Run, row: Step | None, said: str) -> HttpResponse:
    """The box for the panel that asked; else back to the page."""
    if get_requested_panel(request) != "pin" or row is None:
        if said:
            messages.error(request, said)
        return redirect_see_other(get_return_url(request, "pins"))
    shown = build_pin_box(run, row, run.project.role_of(request.user), said)
    return set_cache_headers(render(request, "step/pin.html", shown), "")
