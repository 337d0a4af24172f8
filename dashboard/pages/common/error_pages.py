"""Error pages for people. The API answers the same errors as JSON."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages.common.responses import is_script_request
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import Run


def render_error_page(
    request: HttpRequest, status: int, heading: str, message: str, linked_run: Run | None = None
) -> HttpResponse:
    """The page links to `linked_run`."""
    request.resolver_match = None  # so the frame shows the keys of no page
    context = {"heading": heading, "message": message, "linked_run": linked_run}
    return render(request, "error.html", context, status=status)


def find_error_run(request: HttpRequest) -> Run | None:
    """The run in the URL, if the user may see it."""
    uid = request.resolver_match.kwargs.get("uid", "") if request.resolver_match else ""
    is_run = UID_PATTERN.match(uid) and hasattr(request, "user")
    return permissions.visible_runs(request).by_uid(uid) if is_run else None


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    message = str(exception.args[0]) if exception.args and isinstance(exception.args[0], str) else ""
    message = message or _("There is no page at this address.")
    return render_error_page(request, 404, _("Page not found"), message, find_error_run(request))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    message = str(exception) or _("Your role does not allow this.")
    return render_error_page(request, 403, _("Permission denied"), message)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    message = _("The server could not read this request. Reload the page and try again.")
    return render_error_page(request, 400, _("Bad request"), message)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Most often the user has signed in again in another tab. The page's script sends the form again later, except if
    the page has another address than the server: that does not end."""
    message = _("This form is out of date. Reload the page and try again.")
    if is_script_request(request):
        code = "other_address" if reason.startswith(("Origin", "Referer")) else "session_expired"
        return JsonResponse({"message": message, "code": code}, status=403)
    return render_error_page(request, 403, _("Session expired"), message)


def render_unavailable_page(full: bool) -> HttpResponse:
    """A static file: the database does not answer, or its disk is `full`."""
    return render_static_page(507 if full else 503)


def server_error(request: HttpRequest) -> HttpResponse:
    """A static file: the error may be in the database or in a template."""
    return render_static_page(500)


def render_static_page(status: int) -> HttpResponse:
    return HttpResponse((settings.BASE_DIR / "templates" / f"{status}.html").read_text(), status=status)
