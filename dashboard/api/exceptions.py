"""Every error of the API in one shape: {"error": {"code", "message", "field"?}}."""

from __future__ import annotations

import logging
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView, set_rollback

from rollouts.errors import InvalidInputError, RolloutError

log = logging.getLogger(__name__)

STATUS_BY_CODE = {
    "not_found": 404,
    "conflict": 409,
    "hash_mismatch": 409,
    "outdated": 412,
    "too_large": 413,
    "storage_unavailable": 503,
}


def build_error_body(code: str, message: str, field: str = "") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **({"field": field} if field else {})}}


def describe_exception(problem: BaseException) -> tuple[int, dict[str, Any]] | None:
    """Status and body for what went wrong; None for what is our own mistake."""
    match problem:
        case RolloutError():
            field = problem.field if isinstance(problem, InvalidInputError) else ""
            status = STATUS_BY_CODE.get(problem.code, 400)
            return (507 if is_disk_full(problem) else status), build_error_body(problem.code, str(problem), field)
        case Http404():
            return 404, build_error_body("not_found", str(problem) or "There is nothing here.")
        case PermissionDenied():
            return 403, build_error_body("permission_denied", str(problem) or "You may not do this.")
        case exceptions.APIException():
            return problem.status_code, build_error_body(*get_first_error(problem))
        case RequestDataTooBig():
            return 413, build_error_body("too_large", "The body is larger than this server takes.")
        case SuspiciousOperation():
            return 400, build_error_body("bad_input", "The request is malformed.")
        case OperationalError():
            log.warning("The database does not answer: %s", problem)
            if is_disk_full(problem):
                return 507, build_error_body(
                    "database_unavailable", "The disk of the server's database is full; make room first."
                )
            return 503, build_error_body("database_unavailable", "The database is busy or down; try again in a moment.")
    return None


def is_disk_full(problem: BaseException) -> bool:
    """Whether the file system, SQLite or PostgreSQL says so."""
    cause = problem.__cause__
    if isinstance(cause, OSError):
        return cause.errno in (28, 122)  # ENOSPC, EDQUOT
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == "53100"


def get_first_error(problem: exceptions.APIException) -> tuple[str, str, str]:
    """Code, one sentence and field; of several field errors the first."""
    detail: Any = problem.detail
    field = ""
    while isinstance(detail, dict | list) and detail:
        if isinstance(detail, dict):
            name, detail = next(iter(detail.items()))
            field = field or str(name)
        else:
            detail = detail[0]
    code = getattr(detail, "code", problem.default_code)
    return ("bad_input" if field else str(code)), str(detail), field


def handle_api_exception(problem: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler."""
    described = describe_exception(problem)
    if described is None:
        return None
    set_rollback()
    headers = {}
    if getattr(problem, "auth_header", None):
        headers["WWW-Authenticate"] = str(problem.auth_header)  # type: ignore[attr-defined]
    if described[0] in (503, 507):
        headers["Retry-After"] = "5"
    return Response(described[1], status=described[0], headers=headers)


class UnknownAddressView(APIView):
    """Any address below /api/ that is none of ours."""

    authentication_classes = ()
    permission_classes = ()
    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise Http404(f"There is no {request.path[:200]} in this API; see /api/docs/.")
