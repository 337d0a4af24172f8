"""What may follow in a query, for the box of the step page and for other people's."""

from __future__ import annotations

from dataclasses import asdict
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard.api.parsers import asked
from dashboard.api.schema import Takes
from dashboard.api.views.samples import WHERE, place
from rollouts.lib.validation import number
from rollouts.query import completion


class Completions(APIView):
    """Completion of a query."""

    takes: ClassVar[Takes] = {
        "GET": {
            **{name: about for name, about in WHERE.items() if name != "ordering"},
            "q": "The query as it is typed, whole or not.",
            "at": "Where it is typed, in characters from 0; its end unless told.",
        }
    }

    def get(self, request: Request) -> Response:
        """`choices` for the characters from `start` to `end` of `q`: what takes their place, what kind of thing it is,
        its range or meaning, how many samples it would leave (null where that was not counted)."""
        query = asked(request, self)
        where = place(request, query)
        found = completion.complete(q=query.get("q", ""), at=number(query.get("at"), "at"), **where)
        return Response(asdict(found))
