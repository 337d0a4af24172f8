"""Headers of every response, and compression of our scripts and styles."""

import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import OperationalError
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed, JsonResponse
from django.middleware.locale import LocaleMiddleware
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _
from whitenoise.middleware import WhiteNoiseMiddleware

from dashboard import assets
from dashboard.external_sign_in import (
    SUBJECT_KEY,
    SignInRefusedError,
    find_session_refusal,
    get_proxy_user,
    sign_in_by_proxy,
)
from dashboard.pages.common import (
    LAST_PROJECT_COOKIE,
    YEAR_SECONDS,
    render_error_page,
    render_unavailable_page,
    replace_control_characters,
)
from dashboard.permissions import LAST_PROJECT
from dashboard.search_limits import set_search_person
from rolloutdeck.protocol import SERVER_HEADER, WIRE_VERSION
from rollouts.errors import QueryLimitError, SearchCancelledError, StorageUnavailableError, TooManySearchesError
from rollouts.forgetting import clear_forgotten_texts
from rollouts.storage import BucketError, is_disk_full

log = logging.getLogger(__name__)

# Generations are hostile input: nothing on a page may run, or send data elsewhere.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
STATUS_CLIENT_LEFT = 499  # only for logs: nobody receives the response
SERVER_HEADER_VALUE = str(WIRE_VERSION)
RELEASE_PATTERN = re.compile(r"\A/static/[0-9a-f]{10}/")


def add_server_headers(response: HttpResponseBase) -> HttpResponseBase:
    response.headers[SERVER_HEADER] = SERVER_HEADER_VALUE
    response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    return response


def rolloutdeck_headers(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Adds the header without which a client does not trust a response, and the content security policy. Clears the
    caches first if they may have a prompt that was forgotten."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        clear_forgotten_texts()
        return add_server_headers(get_response(request))

    return respond


class LanguageMiddleware(LocaleMiddleware):
    """Pages have the user's language. Programs, which have no session, get English."""

    def process_request(self, request: HttpRequest) -> None:
        if settings.SESSION_COOKIE_NAME in request.COOKIES or not request.path_info.startswith("/api/v1/"):
            return super().process_request(request)
        translation.activate(settings.LANGUAGE_CODE)
        request.LANGUAGE_CODE = settings.LANGUAGE_CODE


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
    """Refuses what the script of a page sends after another person has signed in in the same browser: it would be saved
    as theirs. `X-Rolloutdeck-User` is the id of the user of the page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        named = request.headers.get("X-Rolloutdeck-User", "")
        if named and request.user.is_authenticated and named != str(request.user.pk):
            message = _("Another person has signed in in this browser. Nothing was saved as theirs.")
            return JsonResponse({"message": message, "code": "other_user"}, status=403)
        return self.get_response(request)


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


class SearchLimitMiddleware(MiddlewareMixin):
    """Counts searches per person, and shows an error page for a search that a limit ended."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            set_search_person(request.user)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        match exception:
            case QueryLimitError():
                return render_error_page(request, 422, _("Search stopped"), str(exception))
            case TooManySearchesError():
                response = render_error_page(request, 429, _("Too many searches"), str(exception))
                response.headers["Retry-After"] = str(exception.retry_after)
                return response
            case SearchCancelledError():
                return HttpResponse(status=STATUS_CLIENT_LEFT)
        return None


class ServiceUnavailableMiddleware(MiddlewareMixin):
    """Shows an error page if the disk or the database fails. The API has its own error responses."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        if isinstance(exception, OperationalError):
            log.warning("The database does not answer: %s", exception)
            return render_unavailable_page(is_disk_full(exception))
        if isinstance(exception, OSError) and is_disk_full(exception):
            return render_unavailable_page(True)
        if not isinstance(exception, StorageUnavailableError | BucketError):
            return None
        message = str(exception.strerror if isinstance(exception, BucketError) else exception)
        return render_error_page(request, 503, _("Data temporarily unavailable"), message)


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Scripts, minified, and styles, all compressed. Pages are not compressed, because they have secrets next to text
    that others choose, and the length of the compressed response would reveal the secrets (breachattack.com)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_files(assets.STATIC_DIR, prefix=f"{self.static_prefix}{assets.get_release_hash()}/")

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info not in self.files:  # a page of another release gets the current file, without caching
            request.path_info = RELEASE_PATTERN.sub("/static/", request.path_info)
        return super().__call__(request)

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponseBase:
        return compress_response(request, WhiteNoiseMiddleware.serve(static_file, request))


def compress_response(request: HttpRequest, response: FileResponse) -> HttpResponseBase:
    """Compresses a complete script or style, and minifies scripts. Vendored files are stored compressed."""
    is_full = request.method == "GET" and response.status_code == 200 and "Content-Encoding" not in response.headers
    if not is_full or not request.path.endswith((".css", ".js", ".svg")):
        return response
    patch_vary_headers(response, ["Accept-Encoding"])
    accepted = {coding.partition(";")[0].strip() for coding in request.headers.get("Accept-Encoding", "").split(",")}
    encoding = next((name for name in assets.COMPRESSORS if name in accepted), None)
    if encoding is None:
        return response
    content = assets.minify(request.path, b"".join(response.streaming_content))  # type: ignore[arg-type]
    body = assets.COMPRESSORS[encoding](content)
    response.streaming_content = [body]
    response.headers["Content-Encoding"] = encoding
    response.headers["Content-Length"] = str(len(body))
    return response
