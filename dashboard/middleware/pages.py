"""The language of a page, the last used project, and addresses that only receive a form."""

from urllib.parse import quote

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed
from django.middleware.locale import LocaleMiddleware
from django.utils import translation
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from dashboard.pages.common import LAST_PROJECT_COOKIE, YEAR_SECONDS, render_error_page
from dashboard.permissions import LAST_PROJECT


class LanguageMiddleware(LocaleMiddleware):
    """Pages have the user's language. Programs, which have no session, get English."""

    def process_request(self, request: HttpRequest) -> None:
        if settings.SESSION_COOKIE_NAME in request.COOKIES or not request.path_info.startswith("/api/v1/"):
            return super().process_request(request)
        translation.activate(settings.LANGUAGE_CODE)
        request.LANGUAGE_CODE = settings.LANGUAGE_CODE


class LastProjectMiddleware(MiddlewareMixin):
    """Saves the project that a page used in a cookie: pages that need a project open with it."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        slug = quote(request.META.get(LAST_PROJECT, ""))
        if slug and slug != request.COOKIES.get(LAST_PROJECT_COOKIE) and request.method == "GET":
            path = f"{settings.PREFIX}/"
            response.set_cookie(LAST_PROJECT_COOKIE, slug, YEAR_SECONDS, path=path, httponly=True, samesite="Lax")
        return response


class FormAddressMiddleware(MiddlewareMixin):
    """Shows an error page where someone opens the address of a form, for example by a reload."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not isinstance(response, HttpResponseNotAllowed) or request.method not in ("GET", "HEAD"):
            return response
        message = _("This address only receives a form. Open the page with the form and send it again.")
        page = render_error_page(request, 405, _("Nothing to show here"), message)
        page.headers["Allow"] = response.headers["Allow"]
        return page
