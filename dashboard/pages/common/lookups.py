"""Loads what a URL names. Objects that the user may not see are not found."""

from typing import Final, cast
from urllib.parse import unquote

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages.common.step_strip import find_step_kind
from rollouts.errors import InvalidInputError
from rollouts.lib import MAX_INT64, parse_integer
from rollouts.models import NOT_BLIND, Attempt, BlindQueues, Project, Queue, Run, Step

LAST_PROJECT_COOKIE: Final = "project"
YEAR_SECONDS: Final = 365 * 24 * 60 * 60


def get_signed_in_user(request: HttpRequest) -> User:
    """Only for views with `login_required`."""
    return cast(User, request.user)


def load_blind_queues(request: HttpRequest) -> BlindQueues:
    """The open blind queues that the user reviews; loaded once per request."""
    if not hasattr(request, "blind_queues"):
        reader = request.user.pk
        request.blind_queues = Queue.objects.blind_for(reader) if reader is not None else NOT_BLIND  # type: ignore[attr-defined]
    return cast(BlindQueues, request.blind_queues)  # type: ignore[attr-defined]


def find_projects(request: HttpRequest, role: str) -> dict[str, Project]:
    """Returns the projects in which the user has the role, by slug."""
    roles = permissions.visible_projects(request).load_with_roles(request.user)
    return {project.slug: project for project, own in roles.items() if permissions.role_allows(own, role)}


def choose_project(request: HttpRequest, slug: str, role: str = "viewer") -> Project | None:
    """The project with this slug. Without a slug the last used one in which the user has the role, else the one with
    the newest run; None if there is none. Raises Http404."""
    if slug:
        return permissions.project_or_404(request, slug)
    allowed = find_projects(request, role)
    last = unquote(request.COOKIES.get(LAST_PROJECT_COOKIE, ""))
    if not allowed or last in allowed:
        return allowed.get(last)
    newest = permissions.visible_runs(request).filter(project__in=allowed.values()).order_by("-seen_at")
    slugs = newest.values_list("project__slug", flat=True)
    return allowed[slugs.first() or next(iter(allowed))]


def attempt_or_404(run: Run, key: str) -> Attempt | None:
    """None for an empty key (the current steps) and for `all`. Raises Http404 if the run has no such attempt."""
    if not key or key == "all":
        return None
    attempt = run.attempts.filter(key=key).first()
    if attempt is None:
        raise Http404(_("This run has no attempt called {key}.").format(key=key))
    return attempt


def find_step(run: Run, split: str, number: int | None, attempt: Attempt | None) -> Step | None:
    """The step with this number, or the latest if it is None; without an attempt, of the current steps. Steps of the
    kind that the pages show come first, but a number may exist only in another kind."""
    steps = run.steps.filter(split=split).select_related("attempt")
    steps = steps.filter(attempt=attempt) if attempt else steps.current()
    kind = find_step_kind(run, split)
    if number is None:
        number = steps.filter(step_kind=kind).order_by("-step").values_list("step", flat=True).first()
    if number is None:
        return None
    rows = list(steps.filter(step=number).order_by("-attempt__number"))
    return next((row for row in rows if row.step_kind == kind), rows[0] if rows else None)


def find_named_step(run: Run, split: str, step: str, attempt: str) -> Step | None:
    """The step of a form field; None for `all`. Raises InvalidInputError."""
    number = None if step == "all" else parse_integer(step, "step", minimum=-MAX_INT64)
    if number is None:
        return None
    row = find_step(run, split, number, attempt_or_404(run, attempt))
    if row is None:
        raise InvalidInputError(_("This run has no {split} step {step}.").format(split=split, step=number), "step")
    return row
