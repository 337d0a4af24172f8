"""Completions of a query, for the query box of the step page and for other programs."""

from dataclasses import asdict

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.api.base import ApiView
from dashboard.api.views.samples import SAMPLE_QUERY_PARAMS, parse_sample_scope
from rollouts.query import complete_query


class Completions(ApiView):
    """Completion of a query."""

    takes = {
        "GET": {
            **{name: description for name, description in SAMPLE_QUERY_PARAMS.items() if name != "ordering"},
            "q": "The query, which may be incomplete.",
            "at": "Position of the cursor in characters from 0. Default: the end of the query.",
        }
    }

    def get(self, request: Request) -> Response:
        """`choices` for the characters from `start` to `end` of `q`: the text to insert, its kind, its range or
        meaning, and how many samples would match (null if that was not counted)."""
        query = self.parse_query()
        scope = parse_sample_scope(request, query)
        return Response(asdict(complete_query(q=query.get("q", ""), at=query.integer("at"), **scope)))
