"""Opens what a URL names, for the person who asks: 404 for what they may not see, as for what is not there."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages.common import step_strip
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_integer
from rollouts.models import Attempt, Run, Step


def get_signed_in_user(request: HttpRequest) -> User:
    """Who asks; only behind `login_required`."""
    return cast(User, request.user)


def attempt_or_404(run: Run, key: str) -> Attempt | None:
    """The attempt that the URL names; None for the run's current curve. 404 for one that is not there."""
    if not key or key == "all":
        return None
    attempt = run.attempts.filter(key=key).first()
    if attempt is None:
        raise Http404(_("This run has no attempt called {key}.").format(key=key))
    return attempt


def find_step(run: Run, split: str, number: int | None, attempt: Attempt | None) -> Step | None:
    """The step with this number, the latest for None; of the current curve unless an attempt is named. A number that
    only counts something else than the split's steps do is taken for that."""
    steps = run.steps.filter(split=split).select_related("attempt")
    steps = steps.filter(attempt=attempt) if attempt else steps.filter(superseded=False)
    usual = step_strip.find_step_kind(run, split)
    if number is None:
        number = steps.filter(step_kind=usual).order_by("-step").values_list("step", flat=True).first()
    if number is None:
        return None
    found = list(steps.filter(step=number).order_by("-attempt__number"))
    return next((one for one in found if one.step_kind == usual), found[0] if found else None)


def find_named_step(run: Run, split: str, word: str, attempt: str) -> Step | None:
    """The step that a form names by its number; None for all of them. Raises BadInput."""
    wanted = None if word == "all" else parse_integer(word, "step")
    if wanted is None:
        return None
    row = find_step(run, split, wanted, attempt_or_404(run, attempt))
    if row is None:
        raise InvalidInputError(_("This run has no {split} step {step}.").format(split=split, step=wanted), "step")
    return row


def role_allows(role: str, least: str) -> bool:
    """Does this role allow what `least` allows?"""
    return permissions.ROLE_RANKS[role] >= permissions.ROLE_RANKS[least]
