"""Every error of the API has one shape: {"error": {"code", "message", "field"?}}."""

import logging
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView, set_rollback

from rollouts.errors import InvalidInputError, RolloutError, TooManySearchesError
from rollouts.storage import BucketError, is_disk_full

log = logging.getLogger(__name__)

NO_TOKEN_MESSAGE = (
    "This needs a token. Set ROLLOUTDECK_TOKEN, or send `Authorization: Bearer <token>`. "
    "Create one in the settings of a project."
)
STATUS_BY_CODE = {
    "not_found": 404,
    "conflict": 409,
    "queue_closed": 409,
    "slot_taken": 409,
    "hash_mismatch": 409,
    "outdated": 412,
    "too_large": 413,
    "query_limit": 422,
    "too_many_searches": 429,
    "search_cancelled": 499,
    "storage_unavailable": 503,
    "quota_exceeded": 507,
}


def build_error_body(code: str, message: str, field: str = "") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **({"field": field} if field else {})}}


def describe_exception(error: BaseException) -> tuple[int, dict[str, Any]] | None:
    """Status and body of the response. None for an error of the server itself."""
    match error:
        case RolloutError():
            field = error.field if isinstance(error, InvalidInputError) else ""
            status = 507 if is_disk_full(error) else STATUS_BY_CODE.get(error.code, 400)
            return status, build_error_body(error.code, str(error), field)
        case Http404():
            return 404, build_error_body("not_found", str(error) or "Not found.")
        case PermissionDenied():
            return 403, build_error_body("permission_denied", str(error) or "You may not do this.")
        case exceptions.NotAuthenticated():
            return error.status_code, build_error_body(error.default_code, NO_TOKEN_MESSAGE)
        case exceptions.APIException():
            return error.status_code, build_error_body(*get_first_error(error))
        case RequestDataTooBig():
            return 413, build_error_body("too_large", "The body is larger than this server accepts.")
        case SuspiciousOperation():
            return 400, build_error_body("bad_input", "The request is malformed.")
        case OperationalError():
            log.warning("The database does not answer: %s", error)
            status, message = 503, "The database is busy or down. Try again in a moment."
            if is_disk_full(error):
                status, message = 507, "The disk of the server's database is full. Free some space first."
            return status, build_error_body("database_unavailable", message)
        case BucketError():
            return 503, build_error_body("storage_unavailable", f"{error.strerror}. Try again in a moment.")
        case OSError() if is_disk_full(error):
            return 507, build_error_body("storage_unavailable", "The server's disk is full. Free some space first.")
    return None


def get_first_error(error: exceptions.APIException) -> tuple[str, str, str]:
    """Code, message and field of the first error."""
    detail: Any = error.detail
    field = ""
    while isinstance(detail, dict | list) and detail:
        if isinstance(detail, dict):
            name, detail = next(iter(detail.items()))
            field = field or str(name)
        else:
            detail = detail[0]
    code = getattr(detail, "code", error.default_code)
    return ("bad_input" if field else str(code)), str(detail), field


def handle_api_exception(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler."""
    described = describe_exception(error)
    if described is None:
        return None
    set_rollback()
    status, body = described
    headers = {}
    if auth_header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(auth_header)
    if isinstance(error, TooManySearchesError):
        headers["Retry-After"] = str(error.retry_after)
    if wait := getattr(error, "wait", None):  # of exceptions.Throttled
        headers["Retry-After"] = str(int(wait))
    if status in (503, 507):
        headers["Retry-After"] = "5"
    return Response(body, status=status, headers=headers)


class UnknownAddressView(APIView):
    """Any other URL below /api/."""

    authentication_classes = ()
    permission_classes = ()
    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise Http404(f"There is no {request.path[:200]} in this API, see /api/docs/.")
