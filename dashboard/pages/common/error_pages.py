"""Error pages in the frame: a sentence for a person. The API answers the same errors as JSON."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from dashboard import permissions
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import Run


def render_error_page(
    request: HttpRequest, status: int, heading: str, said: str, near: Run | None = None
) -> HttpResponse:
    """`near` is a run to go on from."""
    request.resolver_match = None  # no page is shown, so none has its keys in the frame
    return render(request, "error.html", {"heading": heading, "said": said, "near": near}, status=status)


def find_error_run(request: HttpRequest) -> Run | None:
    """The run that the address is of, where the person may see it."""
    uid = request.resolver_match.kwargs.get("uid", "") if request.resolver_match else ""
    known = UID_PATTERN.match(uid) and hasattr(request, "user")
    return permissions.visible_runs(request).by_uid(uid) if known else None


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    said = str(exception.args[0]) if exception.args and isinstance(exception.args[0], str) else ""
    return render_error_page(
        request, 404, _("Page not found"), said or _("There is no page at this address."), find_error_run(request)
    )


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render_error_page(
        request, 403, _("Permission denied"), str(exception) or _("Your role does not allow this.")
    )


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render_error_page(
        request, 400, _("Bad request"), _("The server could not read this request. Reload the page and try again.")
    )


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF check said no: most often a page that was left open while signing in elsewhere."""
    return render_error_page(
        request,
        403,
        _("Session expired"),
        _("This form is out of date. Reload the page and try again."),
    )


def render_unavailable_page(full: bool) -> HttpResponse:
    """The database does not answer, or its disk is `full`: a page in a frame would ask it once more."""
    status = 507 if full else 503
    return HttpResponse((settings.BASE_DIR / "templates" / f"{status}.html").read_text(), status=status)


def server_error(request: HttpRequest) -> HttpResponse:
    """Stands on nothing: what broke may be the database or a template."""
    return HttpResponse((settings.BASE_DIR / "templates" / "500.html").read_text(), status=500)
