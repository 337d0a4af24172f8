"""The user of a request: the session, sign-in from outside, and requests of a page of another user."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from dashboard.pages.common import render_error_page, replace_control_characters
from dashboard.sign_in.external import (
    SUBJECT_KEY,
    SignInRefusedError,
    find_session_refusal,
    get_proxy_user,
    sign_in_by_proxy,
)


class SignInSessionMiddleware(SessionMiddleware):
    """Tells the session its browser and address, for the list of one's own sessions."""

    def process_request(self, request: HttpRequest) -> None:
        super().process_request(request)
        session: Any = request.session
        session.address = str(request.META.get("REMOTE_ADDR", ""))
        session.user_agent = replace_control_characters(request.headers.get("User-Agent", ""))

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        response = super().process_response(request, response)
        session: Any = request.session
        session.record_use()
        return response


class ExternalSignInMiddleware(MiddlewareMixin):
    """Signs in whom a trusted proxy names, and ends a session whose sign-in service ended the access."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if settings.OPENID is None and settings.TRUSTED_PROXY is None:
            return None
        if request.path_info.startswith("/api/v1/") and "Authorization" in request.headers:
            return None  # `authenticate_token` checks the owner
        named = get_proxy_user(request)
        if named and (not request.user.is_authenticated or SUBJECT_KEY in request.session):
            try:
                sign_in_by_proxy(request, named)
            except SignInRefusedError as error:
                return self.refuse(request, str(error))
        elif request.user.is_authenticated:
            refusal = find_session_refusal(request.session, request.user, named.name if named else "")
            if refusal:
                logout(request)
                messages.error(request, refusal)
        return None

    @staticmethod
    def refuse(request: HttpRequest, reason: str) -> HttpResponse | None:
        """Local admins can still open the pages that sign in."""
        logout(request)
        if request.path_info.startswith("/sign-in/"):
            messages.error(request, reason)
            return None
        return render_error_page(request, 403, _("Sign-in refused"), reason)


class PageUserMiddleware:
    """Refuses what a page sends after another person has signed in in the same browser: it would be saved as theirs.
    The header `X-Rolloutdeck-User`, of a form the field `page_user`, is the id of the user of the page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        named, is_form = request.headers.get("X-Rolloutdeck-User", ""), False
        if not named and request.method == "POST" and request.content_type == "application/x-www-form-urlencoded":
            named, is_form = request.POST.get("page_user", ""), True
        if named and request.user.is_authenticated and named != str(request.user.pk):
            message = _("Another person has signed in in this browser. Nothing was saved as theirs.")
            if is_form:
                return render_error_page(request, 403, _("Not saved"), message)
            return JsonResponse({"message": message, "code": "other_user"}, status=403)
        return self.get_response(request)
