"""Answers to what a page's script posts: a sentence as JSON. Without script: back to the page, with the sentence."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse

from dashboard.pages.common.back import back, seen_other
from rollouts.errors import RolloutError


def by_script(request: HttpRequest) -> bool:
    return request.headers.get("Accept", "").startswith("application/json")


def done(request: HttpRequest, said: str, otherwise: str, *args: object, **more: Any) -> HttpResponse:
    """What was done, and `more` for the script."""
    if by_script(request):
        return JsonResponse({"said": said, **more})
    messages.success(request, said)
    return seen_other(back(request, otherwise, *args))


def refused(request: HttpRequest, error: RolloutError, otherwise: str, *args: object) -> HttpResponse:
    """Why nothing was done."""
    if by_script(request):
        return JsonResponse({"said": str(error)}, status=400)
    messages.error(request, str(error))
    return seen_other(back(request, otherwise, *args))
