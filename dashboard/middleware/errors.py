"""Error pages for searches that a limit ends, and for a disk or a database that fails."""

import logging
from typing import Any

from django.conf import settings
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from dashboard.pages.common import render_error_page, render_unavailable_page
from dashboard.search_limits import set_search_person
from rollouts.errors import QueryLimitError, SearchCancelledError, StorageUnavailableError, TooManySearchesError
from rollouts.storage import BucketError, is_disk_full

log = logging.getLogger(__name__)

STATUS_CLIENT_LEFT = 499  # only for logs: nobody receives the response


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
