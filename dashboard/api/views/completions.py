"""What may follow in a query, for the box of the step page and for other people's."""

from __future__ import annotations

from dataclasses import asdict
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard.api.parsers import parse_query_params
from dashboard.api.schema import AcceptedParams
from dashboard.api.views.samples import SAMPLE_QUERY_PARAMS, parse_sample_scope
from rollouts.lib import parse_integer
from rollouts.query import complete_query


class Completions(APIView):
    """Completion of a query."""

    takes: ClassVar[AcceptedParams] = {
        "GET": {
            **{name: about for name, about in SAMPLE_QUERY_PARAMS.items() if name != "ordering"},
            "q": "The query as it is typed, whole or not.",
            "at": "Where it is typed, in characters from 0; its end unless told.",
        }
    }

    def get(self, request: Request) -> Response:
        """`choices` for the characters from `start` to `end` of `q`: what takes their place, what kind of thing it is,
        its range or meaning, how many samples it would leave (null where that was not counted)."""
        query = parse_query_params(request, self)
        where = parse_sample_scope(request, query)
        found = complete_query(q=query.get("q", ""), at=parse_integer(query.get("at"), "at"), **where)
        return Response(asdict(found))
