"""A project's API tokens: create and revoke."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import get_signed_in_user
from dashboard.pages.settings.projects import build_project_context
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.projects import MAX_TOKEN_DAYS, create_token, revoke_token


@login_required
@require_POST
@sensitive_variables("secret")
def create_token_view(request: HttpRequest, slug: str) -> HttpResponse:
    """Responds with the page, not with a redirect: the secret is not stored, so it can only be shown now."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    user, name, scopes = get_signed_in_user(request), request.POST.get("name", ""), request.POST.getlist("scopes")
    if "admin" in scopes:
        permissions.require_role(request, project, "owner")
    try:
        days = parse_days(request.POST.get("days", ""))
        token, secret = create_token(user, name=name, scopes=scopes, project=project, days=days)
    except RolloutError as error:
        messages.error(request, str(error))
        return redirect("project", project.slug)
    context = build_project_context(request, project, secret=secret, issued=token)
    response = render(request, "settings/project.html", context)
    response["Cache-Control"] = "no-store"
    return response


def parse_days(text: str) -> int | None:
    """Days until a token expires; None for an empty text. Raises InvalidInputError."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_TOKEN_DAYS:
        message = _("Days until it expires must be a number from 1 to {most}, or empty.").format(most=MAX_TOKEN_DAYS)
        raise InvalidInputError(message, "days")
    return int(text)


@login_required
@require_POST
def revoke_token_view(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Users revoke their own tokens, owners any."""
    project = permissions.project_or_404(request, slug)
    token = project.tokens.filter(pk=pk).first()
    if token is None:
        raise Http404(_("Token not found in this project."))
    if token.user_id != request.user.pk:
        permissions.require_role(request, project, "owner")
    revoke_token(token, get_signed_in_user(request))
    messages.success(request, _("Token {name} revoked.").format(name=token.name))
    return redirect("project", project.slug)
