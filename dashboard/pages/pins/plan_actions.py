"""Saving a plan, and loosening what it refuses. Both answer with a redirect to the page that says what came of it."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import get_return_url, get_signed_in_user, redirect_see_other
from dashboard.pages.pins.plan_view import PlanPageState
from rollouts.errors import OutdatedError, RolloutError
from rollouts.models import Pin
from rollouts.replay import override_check, restore_check, save_plan


@login_required
@require_POST
def save_plan_view(request: HttpRequest) -> HttpResponse:
    """With `do=save` the draft becomes the next revision; any other button of the form leads to the draft's address,
    which is how the form works without script. Where somebody saved meanwhile the draft's own page tells of it."""
    project = permissions.project_or_404(request, request.POST.get("project", ""))
    permissions.require_role(request, project, "maintainer")
    page = PlanPageState(request.POST, project)
    draft = page.draft
    if request.POST.get("do") != "save" or not draft.whole:
        return redirect_see_other(page.address())
    pins = {pin.pk: pin for pin in Pin.objects.filter(project=project, pk__in=[pin for pin, _ in draft.entries])}
    try:
        saved = save_plan(
            project,
            page.plan,
            get_signed_in_user(request),
            if_match=draft.base,
            action=draft.action,
            on_mismatch=draft.on_mismatch,
            exclude_flagged=draft.exclude_flagged,
            entries=[(pins[pin], step) for pin, step in draft.entries if pin in pins],
        )
    except OutdatedError:
        return redirect_see_other(page.address())
    except RolloutError as error:
        messages.error(request, str(error))
        return redirect_see_other(page.address())
    told = _("Saved revision {number}. Runs that have already started keep their revision.")
    messages.success(request, told.format(number=saved.number))
    fresh = PlanPageState(request.POST, project)
    return redirect_see_other(fresh.address(fresh.saved))


@login_required
@require_POST
def override_check_view(request: HttpRequest, slug: str) -> HttpResponse:
    """A refusal becomes a warning for `note`'s reason; without the field `note` it refuses again."""
    project = permissions.project_or_404(request, slug)
    permissions.require_role(request, project, "maintainer")
    fact, by = request.POST.get("fact", ""), get_signed_in_user(request)
    try:
        if "note" in request.POST:
            override_check(project, fact, by, request.POST["note"])
        else:
            restore_check(project, fact, by)
    except RolloutError as error:
        messages.error(request, str(error))
    return redirect_see_other(get_return_url(request, "pins"))
