"""A project's API tokens: create and revoke."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import clean_param, format_form_error, get_signed_in_user
from dashboard.pages.settings.projects import build_project_context
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.projects import MAX_TOKEN_DAYS, create_token, revoke_token

FIELD_LABELS = {"name": gettext_lazy("purpose"), "scopes": gettext_lazy("scopes")}


@login_required
@require_POST
@sensitive_variables("secret")
def create_token_view(request: HttpRequest, slug: str) -> HttpResponse:
    """Responds with the page, not with a redirect: the secret is not stored, so it can only be shown now. What cannot
    be saved stays in the form."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    user, scopes = get_signed_in_user(request), request.POST.getlist("scopes")
    name, days = (clean_param(request.POST.get(field, "")) for field in ("name", "days"))
    if "admin" in scopes:
        permissions.require_role(request, project, "owner")
    try:
        token, secret = create_token(user, name=name, scopes=scopes, project=project, days=parse_days(days))
    except RolloutError as error:
        draft, message = {"name": name, "scopes": scopes, "days": days}, format_form_error(error, FIELD_LABELS)
        context = build_project_context(request, project, token_draft=draft, token_error=message)
        return render(request, "settings/project.html", context, status=400)
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
