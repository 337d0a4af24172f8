"""The search over the samples of all runs of a project, streamed run by run."""

from collections.abc import Iterator
from typing import Any

import orjson
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.views.samples import iterate_in_threads
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Run
from rollouts.query import parse_query
from rollouts.runs import MAX_SHOWN_SAMPLES, RunMatches, search_runs
from rollouts.samples import serialize_index_row


class Search(ApiView):
    """Samples of all runs of a project."""

    searches = ("GET",)
    takes = {
        "GET": {
            "project": "A slug; required.",
            "q": "The query language of the pages; required.",
            "shown": f"Samples of each run in the response, 3 by default, at most {MAX_SHOWN_SAMPLES}.",
        }
    }

    def get(self, request: Request) -> StreamingHttpResponse:
        """One JSON object per line for each run, the newest first: `run`, `name`, `count` of matches, `partial` if
        older steps were not searched, `unknown` if no sample has a key that the query asks for, and previews of the
        first `samples`. If the search fails, the last line is `{error: {message}}`. The search ends when the
        client leaves."""
        query = self.parse_query()
        for name in ("project", "q"):
            if not query.get(name):
                raise InvalidInputError(f"`{name}` is missing.", name)
        project = permissions.project_or_404(request, query["project"])
        shown = query.integer("shown", maximum=MAX_SHOWN_SAMPLES)
        parse_query(query["q"])
        runs = permissions.visible_runs(request).filter(project=project, archived_at=None)
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
        "unknown": part.is_unknown,
        "samples": [serialize_index_row(sample) for sample in part.samples],
    }
