"""Dumps of a run: what arrived, and reading it anew. PUT is in `dashboard/uploads/app.py`."""

from __future__ import annotations

from typing import ClassVar

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import SHA256_PATTERN, SPLITS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice, parse_integer
from rollouts.models import Dump
from rollouts.runs import reindex_runs


class Dumps(APIView):
    """What arrived."""

    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "state": "received, indexing, indexed, failed, unsafe or superseded.",
            "split": "train or eval.",
            "step": "A number.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """The run's dumps, newest first, filtered by `state`, `split` and `step`."""
        query = parse_query_params(request, self)
        rows = permissions.run_or_404(request, uid).dumps.select_related("attempt").order_by("-pk")
        wanted = {
            "state": parse_choice(query.get("state"), "state", Dump.State.values, default=""),
            "split": parse_choice(query.get("split"), "split", SPLITS, default=""),
            "step": parse_integer(query.get("step"), "step"),
        }
        rows = rows.filter(**{name: value for name, value in wanted.items() if value not in ("", None)})
        pages = ApiPagination()
        return pages.get_paginated_response(
            [serializers.serialize_dump(row) for row in pages.paginate_queryset(rows, request) or []]
        )


class OneDump(APIView):
    """The bytes with this sha256, as far as they have come."""

    def get(self, request: Request, uid: str, sha256: str) -> Response:
        """The dumps of a run with these bytes: one for each identity they arrived under."""
        if not SHA256_PATTERN.match(sha256):
            raise InvalidInputError("The address must end in a sha256: 64 lower-case hex digits.", "sha256")
        rows = permissions.run_or_404(request, uid).dumps.filter(sha256=sha256).select_related("attempt").order_by("pk")
        if not rows:
            raise Http404("This run has no dump with these bytes.")
        return Response({"results": [serializers.serialize_dump(row) for row in rows]})


class Index(APIView):
    """Indexing anew."""

    scopes = {"POST": "ingest"}
    takes: ClassVar[AcceptedParams] = {"POST": {}}

    def post(self, request: Request, uid: str) -> Response:
        """Read the run's dumps once more from the bytes that were kept; ids, flags and links stay. `dumps` says how
        many wait for it."""
        parse_json_body(request, self)
        run = permissions.run_or_404(request, uid, scope="ingest")
        return Response({"dumps": reindex_runs([run], permissions.require_user(request))})
