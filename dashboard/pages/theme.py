"""The colours that a person chose, kept in a cookie so that the first paint already has them."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from dashboard.pages.back import back

YEAR = 365 * 24 * 60 * 60


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    response = redirect(back(request, "runs"), permanent=False)
    chosen = request.POST.get("theme", "")
    if chosen in ("light", "dark"):
        response.set_cookie("theme", chosen, max_age=YEAR, path=f"{settings.PREFIX}/", samesite="Lax")
    else:
        response.delete_cookie("theme", path=f"{settings.PREFIX}/", samesite="Lax")
    return response
