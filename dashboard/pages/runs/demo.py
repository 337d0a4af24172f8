"""The button of an empty run list: loads the demo data."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard.pages.common import get_signed_in_user
from rollouts.demo import DEMO_PROJECT
from rollouts.models import Membership
from rollouts.projects import create_project
from workers import dispatch


@login_required
@require_POST
def load_demo_view(request: HttpRequest) -> HttpResponse:
    """Creates the project `demo`, owned by the user, and lets a worker load it. Pressing twice changes nothing."""
    user = get_signed_in_user(request)
    project, _created = create_project(DEMO_PROJECT, user)
    if project.role_of(user) != Membership.Role.OWNER:
        messages.error(request, _("The project “demo” exists already. Ask one of its owners for a role."))
    elif dispatch.send_now("load_demo", project.pk, user.pk):
        messages.success(request, _("Loading the demo data. Its runs appear here within a minute."))
    else:
        messages.error(request, _("The workers cannot be reached. Try again in a moment."))
    return redirect("runs")
