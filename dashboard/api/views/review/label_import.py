"""Import of labels: rows of a file that `rolloutdeck export` wrote, or that another program did."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params
from rollouts.errors import InvalidInputError
from rollouts.label_import import FIELDS, MAX_IMPORT_ROWS, ImportOptions, import_rows
from rollouts.models import Run

MAX_LISTED_FIELDS = 100
ROW_TEXT = f"At most {MAX_IMPORT_ROWS:,} objects with these fields: {', '.join(FIELDS)}. "
ROW_TEXT += "A sample is found by `sample`, else by run, step, group and index, else by prompt and response."


class LabelImport(ApiView):
    """Import of labels."""

    scopes = {"POST": "annotate"}
    takes = {
        "POST": {
            "project": "Its slug.",
            "rows": ROW_TEXT,
            "run": "Name or id of a run, for rows that name none, or one that the project does not have.",
            "all_matches": "true: a row labels all samples that it matches. Otherwise such a row is a problem.",
            "dry_run": "true: nothing is stored.",
            "time": "Time of rows without `updated_at`, for example that of the file; by default now.",
            "file": "Name of the file, for the audit log.",
        }
    }

    def post(self, request: Request) -> Response:
        """Merge labels into those of a project: of an author's two answers the newer one holds, so that importing again
        changes nothing. A row that cannot be imported costs only itself, and is in `problems`.

        Labels of other people need the role maintainer. `labels` counts those that are new, changed and unchanged;
        `matched` counts rows by the way their sample was found.
        """
        data = self.parse_body()
        project = permissions.project_or_404(request, data.text("project", 80))
        permissions.require_role(request, project, permissions.ROLE_BY_SCOPE["annotate"])
        rows = data.get("rows")
        if not isinstance(rows, list) or not rows:
            raise InvalidInputError("`rows` must be a list of objects.", "rows")
        role = project.role_of(self.user)
        options = ImportOptions(
            run=find_run(request, data, project.pk),
            all_matches=data.boolean("all_matches"),
            any_author=permissions.ROLE_RANKS[role] >= permissions.ROLE_RANKS["maintainer"],
            dry_run=data.boolean("dry_run"),
            time=parse_file_time(data),
            file=data.text("file", 200),
        )
        result = import_rows(project, self.user, rows, options)
        response: dict[str, Any] = {
            "rows": len(rows),
            "labels": {name: result.labels[name] for name in ("new", "changed", "unchanged")},
            "matched": {name: result.matched[name] for name in ("id", "place", "text")},
            "problems": [asdict(problem) for problem in result.problems],
            "unused_fields": sorted(result.unused_fields)[:MAX_LISTED_FIELDS],
        }
        return Response(response)


def find_run(request: Request, data: Params, project: int) -> Run | None:
    """Raises InvalidInputError."""
    name = data.text("run", 200)
    if not name:
        return None
    run = permissions.visible_runs(request).filter(project=project, name=name).first()
    run = run or permissions.find_run(request, name)
    if run is None or run.project_id != project:
        raise InvalidInputError(f"The project has no run {name[:60]!r}.", "run")
    return run


def parse_file_time(data: Params) -> datetime | None:
    """Raises InvalidInputError."""
    text = data.text("time", 60)
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInputError("`time` must be a time such as 2026-11-30T18:00:00+00:00.", "time") from error
