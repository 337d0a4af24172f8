"""Queries that are not about one step: completions in a query box, and the search over all runs of a project."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import orjson
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, filter_by_owner
from dashboard.api.views.samples import SAMPLE_QUERY_PARAMS, parse_sample_scope
from dashboard.streaming import iterate_in_threads
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Run
from rollouts.query import QueryCompletion, complete_query, complete_query_of_runs, parse_query
from rollouts.runs import MAX_SHOWN_SAMPLES, RunMatches, complete_run_query, find_runs, search_runs
from rollouts.samples import serialize_index_row

COMPLETION_KINDS = ("samples", "runs")


class Completions(ApiView):
    """Completion of a query."""

    resource = "completions"  # in the operation's id, which generated clients use
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
        if query.choice("kind", COMPLETION_KINDS, default="samples") == "runs":
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


class Search(ApiView):
    """Samples of all runs of a project."""

    sends = ("application/x-ndjson",)
    searches = ("GET",)
    takes = {
        "GET": {
            "project": "A slug; required.",
            "q": "The query language of the pages; required.",
            "shown": f"Samples of each run in the response, 3 by default, at most {MAX_SHOWN_SAMPLES}.",
        }
    }

    def get(self, request: Request) -> StreamingHttpResponse:
        """One JSON object per line for each run with samples, the newest first: `run`, `name`, `count` of matches,
        `partial` if older steps were not searched, `unknown` with a `problem` if the run does not have what the query
        asks for, such as a key that no sample has, and previews of the first `samples`. If the search fails, the last
        line is `{error: {message}}`. The search ends when the client leaves."""
        query = self.parse_query()
        for name in ("project", "q"):
            if not query.get(name):
                raise InvalidInputError(f"`{name}` is missing.", name)
        project = permissions.project_or_404(request, query["project"])
        shown = query.integer("shown", maximum=MAX_SHOWN_SAMPLES)
        parse_query(query["q"])
        runs = permissions.visible_runs(request).filter(project=project, archived_at=None).with_samples()
        lines = iter_lines(runs, query["q"], self.user.pk, 3 if shown is None else shown)
        return StreamingHttpResponse(iterate_in_threads(lines), content_type="application/x-ndjson")


def iter_lines(runs: QuerySet[Run], q: str, reader: int, shown: int) -> Iterator[bytes]:
    try:
        for part in search_runs(runs, q, reader=reader, shown=shown):
            yield encode_line(serialize_matches(part))
    except RolloutError as error:  # the response has begun, so its status cannot say it
        yield encode_line({"error": {"code": error.code, "message": str(error)}})


def encode_line(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields, default=str) + b"\n"


def serialize_matches(part: RunMatches) -> dict[str, Any]:
    return {
        "run": part.run.uid,
        "name": part.run.name,
        "count": part.total,
        "partial": part.is_partial,
        "unknown": bool(part.problem),
        "problem": part.problem,
        "samples": [serialize_index_row(sample) for sample in part.samples],
    }
