"""Where a form without script goes after it was saved."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.utils.http import url_has_allowed_host_and_scheme


def back(request: HttpRequest, otherwise: str, *args: object) -> str:
    """The page that the form names, if it is one of ours."""
    wanted = request.POST.get("next", "")
    ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if ours else resolve_url(otherwise, *args)


def seen_other(address: str) -> HttpResponse:
    """303: the browser gets the address, so that a reload posts nothing again."""
    response = HttpResponseRedirect(address)
    response.status_code = 303
    return response
