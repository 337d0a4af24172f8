"""What a person chose of colours and keys, kept in cookies so that the first paint already has them."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from dashboard.pages.common import get_return_url

YEAR_SECONDS = 365 * 24 * 60 * 60


@require_POST
def set_theme_view(request: HttpRequest) -> HttpResponse:
    return save_choice_in_cookie(request, "theme", ("light", "dark"))


@require_POST
def set_shortcuts_view(request: HttpRequest) -> HttpResponse:
    """Single keys `on`, as they are at first, or `off`."""
    return save_choice_in_cookie(request, "keys", ("off",))


def save_choice_in_cookie(request: HttpRequest, name: str, allowed: tuple[str, ...]) -> HttpResponse:
    """Back to where the form was, with the choice in a cookie; anything else is the default."""
    response = redirect(get_return_url(request, "runs"), permanent=False)
    chosen = request.POST.get(name, "")
    if chosen in allowed:
        response.set_cookie(name, chosen, max_age=YEAR_SECONDS, path=f"{settings.PREFIX}/", samesite="Lax")
    else:
        response.delete_cookie(name, path=f"{settings.PREFIX}/", samesite="Lax")
    return response
