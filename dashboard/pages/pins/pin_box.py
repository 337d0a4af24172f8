"""The pin box of a step: the state of its pin, and the forms that pin, unpin and edit the note."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.pins import pin_list
from rolloutdeck.trainer_api import get_first_step
from rollouts import pins
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Pin, Run, Step
from rollouts.replay import find_plan_entry, pin_into_plan


def build_pin_box(run: Run, step: Step | None, role: str, error: str = "") -> dict[str, Any]:
    """The context of `step/pin.html`; empty if the page does not show a single step."""
    if step is None:
        return {}
    step.run = run
    pin, may_pin = pins.find_pin(step), permissions.role_allows(role, "maintainer")
    return {
        "run": run,
        "project": run.project,
        "role": role,
        "pinnable": step,
        "may_pin": may_pin,
        "pin_error": error,
        "replay": pin_list.load_replay_labels([step]).get(step.pk),
        "pin": pin,
        "pin_state": pin_list.build_pin_state(pin, pins.load_pin_status(pin)) if pin else None,
        **(build_pin_form(run, step) if may_pin and not pin else {}),
    }


def build_pin_form(run: Run, step: Step) -> dict[str, Any]:
    """Why the step cannot be pinned, or the default of the target step: the same step, where it is free."""
    if not run.artifacts.exists():
        return {"unpinnable_reason": pins.explain_nothing_to_pin(run, step.step, None)}
    artifacts, prompts = pins.find_replayable_artifacts(run, step.attempt, step.split, step.step_kind, step.step)
    if not artifacts:
        return {"unpinnable_reason": pins.explain_nothing_to_pin(run, step.step, prompts)}
    first = min(get_first_step(str(artifact.facts.get("format") or "")) for artifact in artifacts)
    if step.split != "train" or step.step < first:
        return {}
    taken = find_plan_entry(run.project, step.step)
    return {"taken_by": pin_list.format_pin_name(taken.pin)} if taken else {"default_target": step.step}


@login_required
@require_POST
def pin_step_view(request: HttpRequest, uid: str) -> HttpResponse:
    """Pins the step that the form names; with a target step it also enters the project's default plan."""
    run = permissions.run_or_404(request, uid, role="maintainer")
    step = step_or_404(run, request)
    message = ""
    try:
        pin_into_plan(
            run,
            step.step,
            common.get_signed_in_user(request),
            split=step.split,
            attempt=step.attempt.key,
            step_kind=step.step_kind,
            note=request.POST.get("note", "").strip() or None,
            target_step=parse_target_step(request),
        )
    except RolloutError as error:
        message = str(error)
    return respond_with_pin_box(request, run, step, message)


def step_or_404(run: Run, request: HttpRequest) -> Step:
    split, kind, number, attempt = (
        request.POST.get(name, "").replace("\0", "") for name in ("split", "step_kind", "step", "attempt")
    )
    if not (number.removeprefix("-").isdecimal() and number.isascii() and len(number) < 19):
        raise Http404(_("Step not found."))
    steps = run.steps.filter(split=split, step_kind=kind, step=int(number), attempt__key=attempt)
    step = steps.select_related("attempt").first()
    if step is None:
        raise Http404(_("Step not found in this run."))
    return step


def parse_target_step(request: HttpRequest) -> int | None:
    """Raises InvalidInputError."""
    text = request.POST.get("target_step", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidInputError(_("The target step must be a whole number, for example 3."), "target_step")
    return int(text)


@login_required
@require_POST
def edit_pin_note_view(request: HttpRequest, pk: int) -> HttpResponse:
    pin = pin_or_404(request, pk)
    try:
        pins.update_pin_note(pin, common.get_signed_in_user(request), request.POST.get("note", "").strip())
    except RolloutError as error:
        messages.error(request, str(error))
    return common.redirect_see_other(common.get_return_url(request, "pins"))


@login_required
@require_POST
def unpin_step_view(request: HttpRequest, pk: int) -> HttpResponse:
    pin = pin_or_404(request, pk)
    message = ""
    try:
        pins.remove_pin(pin, common.get_signed_in_user(request))
    except RolloutError as error:
        message = str(error)
    key = {name: getattr(pin, name) for name in ("run", "attempt", "split", "step_kind", "step")}
    step = Step.objects.filter(**key).select_related("attempt").first()
    return respond_with_pin_box(request, pin.run, step, message)


def pin_or_404(request: HttpRequest, pk: int) -> Pin:
    """A pin that the user may change."""
    visible = Pin.objects.filter(run__in=permissions.visible_runs(request), removed_at=None)
    pin: Pin | None = visible.select_related("run__project", "attempt", "user").filter(pk=pk).first()
    if pin is None:
        raise Http404(_("Pin not found, or you have no access to it."))
    permissions.require_role(request, pin.run.project, "maintainer")
    return pin


def respond_with_pin_box(request: HttpRequest, run: Run, step: Step | None, message: str) -> HttpResponse:
    """The box for the panel that requested it; otherwise a redirect back to the page."""
    if common.get_requested_panel(request) != "pin" or step is None:
        if message:
            messages.error(request, message)
        return common.redirect_see_other(common.get_return_url(request, "pins"))
    context = build_pin_box(run, step, run.project.role_of(request.user), message)
    return common.set_cache_headers(render(request, "step/pin.html", context), "")
