"""Responses to forms: JSON for the page's script; without JavaScript, a redirect back to the page."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import resolve_url
from django.utils.http import url_has_allowed_host_and_scheme

from rollouts.errors import RolloutError


def get_return_url(request: HttpRequest, default: str, *args: object) -> str:
    """The form's `next`, if it is a URL of this server."""
    url = request.POST.get("next", "")
    is_own = url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure())
    return url if is_own else resolve_url(default, *args)


def redirect_see_other(url: str) -> HttpResponse:
    """303: a reload does not send the form again."""
    response = HttpResponseRedirect(url)
    response.status_code = 303
    return response


def is_script_request(request: HttpRequest) -> bool:
    return request.headers.get("Accept", "").startswith("application/json")


def respond_success(request: HttpRequest, message: str, default: str, *args: object, **fields: Any) -> HttpResponse:
    """`fields` are for the script."""
    if is_script_request(request):
        return JsonResponse({"message": message, **fields})
    messages.success(request, message)
    return redirect_see_other(get_return_url(request, default, *args))


def respond_error(request: HttpRequest, error: RolloutError, default: str, *args: object) -> HttpResponse:
    if is_script_request(request):
        return JsonResponse({"message": str(error)}, status=400)
    messages.error(request, str(error))
    return redirect_see_other(get_return_url(request, default, *args))


def format_form_error(error: RolloutError, labels: Mapping[str, Any]) -> str:
    """The message of an error for the person who filled in a form. Messages name a field as the API does; `labels` has
    what the form shows instead."""
    field = getattr(error, "field", "")
    return str(error).replace(f"`{field}`", f"“{labels[field]}”") if field in labels else str(error)
