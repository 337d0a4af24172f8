"""Completions of a query about samples or runs, for the query boxes of the pages and for other programs."""

from dataclasses import asdict

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, filter_by_owner
from dashboard.api.views.samples import SAMPLE_QUERY_PARAMS, parse_sample_scope
from rollouts.query import QueryCompletion, complete_query, complete_query_of_runs
from rollouts.runs import complete_run_query, find_runs

KINDS = ("samples", "runs")


class Completions(ApiView):
    """Completion of a query."""

    takes = {
        "GET": {
            "kind": "samples (default) of one run or of the newest runs of a project, or runs.",
            "project": "A slug. With kind=runs all projects by default; with kind=samples instead of a run.",
            **{name: description for name, description in SAMPLE_QUERY_PARAMS.items() if name != "ordering"},
            "run": "Its id; with kind=samples either a run or a project is required.",
            "q": "The query, which may be incomplete.",
            "at": "Position of the cursor in characters from 0. Default: the end of the query.",
        }
    }

    def get(self, request: Request) -> Response:
        """`choices` for the characters from `start` to `end` of `q`: the text to insert, its kind, its range or
        meaning, and how many samples or runs would match (null if that was not counted)."""
        query = self.parse_query()
        if query.choice("kind", KINDS, default="samples") == "runs":
            return Response(asdict(self.complete_runs(request, query)))
        if "project" in query and "run" not in query:
            runs = filter_by_owner(permissions.visible_runs(request).filter(archived_at=None), request, query)
            newest = runs.order_by("-seen_at", "-pk").iterator(chunk_size=10)
            at = query.integer("at")
            return Response(asdict(complete_query_of_runs(newest, query.get("q", ""), at, reader=self.user.pk)))
        scope = parse_sample_scope(request, query)
        return Response(asdict(complete_query(q=query.get("q", ""), at=query.integer("at"), **scope)))

    def complete_runs(self, request: Request, query: Params) -> QueryCompletion:
        q = query.get("q", "")
        runs = filter_by_owner(permissions.visible_runs(request), request, query)
        archived = None if "is:archived" in q else False
        table = find_runs(runs, reader=self.user.pk, archived=archived).table
        return complete_run_query(table, q, query.integer("at"))
