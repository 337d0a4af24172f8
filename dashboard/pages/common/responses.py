"""Responses to a form: a message as JSON for the page's script; without script a redirect back to the page."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import resolve_url
from django.utils.http import url_has_allowed_host_and_scheme

from rollouts.errors import RolloutError


def get_return_url(request: HttpRequest, otherwise: str, *args: object) -> str:
    """The page that the form names, if it is one of ours."""
    wanted = request.POST.get("next", "")
    ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if ours else resolve_url(otherwise, *args)


def redirect_see_other(address: str) -> HttpResponse:
    """303: the browser gets the address, so that a reload posts nothing again."""
    response = HttpResponseRedirect(address)
    response.status_code = 303
    return response


def is_script_request(request: HttpRequest) -> bool:
    return request.headers.get("Accept", "").startswith("application/json")


def respond_success(request: HttpRequest, said: str, otherwise: str, *args: object, **more: Any) -> HttpResponse:
    """What was done, and `more` for the script."""
    if is_script_request(request):
        return JsonResponse({"said": said, **more})
    messages.success(request, said)
    return redirect_see_other(get_return_url(request, otherwise, *args))


def respond_error(request: HttpRequest, error: RolloutError, otherwise: str, *args: object) -> HttpResponse:
    """Why nothing was done."""
    if is_script_request(request):
        return JsonResponse({"said": str(error)}, status=400)
    messages.error(request, str(error))
    return redirect_see_other(get_return_url(request, otherwise, *args))
