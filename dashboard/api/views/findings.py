"""Findings: a title, a note, and exhibits that hold what they show."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from dashboard.api.serializers import build_public_url
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.findings import (
    MAX_EVIDENCE_ITEMS,
    MAX_QUOTES,
    Quote,
    add_chart_evidence,
    add_query_evidence,
    add_sample_evidence,
    build_quote,
    create_finding,
    find_quote,
    move_evidence,
    remove_evidence,
    remove_finding,
    restore_finding,
    set_evidence_note,
    update_finding,
)
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text
from rollouts.models import EvidenceItem, Finding, Run
from rollouts.samples import load_body

FINDING_WRITE_ROLE = permissions.ROLE_BY_SCOPE["annotate"]
MAX_QUOTE_CHARS = 100_000  # characters of a quote, before it is looked for
MAX_CHART_RUNS = 8


class Findings(APIView):
    """Findings."""

    scopes = {"POST": "annotate"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "project": "A slug.",
            "name": "Words of its title or note.",
            "removed": "true: those that were removed.",
        },
        "POST": {"project": "A slug.", "title": "What was seen, in a line.", "note": "Markdown."},
    }

    def get(self, request: Request) -> Response:
        """Findings you may see, those with the latest news first."""
        query = parse_query_params(request, self)
        rows = visible_findings(request).filter(
            removed_at__isnull=not parse_boolean(query.get("removed", "false"), "removed")
        )
        if "project" in query:
            rows = rows.filter(project=permissions.project_or_404(request, query["project"]))
        if name := query.get("name"):
            rows = rows.filter(Q(title__icontains=name) | Q(note__icontains=name))
        pages = ApiPagination()
        page = pages.paginate_queryset(rows.order_by("-updated_at", "-pk"), request, self) or []
        return pages.get_paginated_response([serialize_finding(row) for row in page])

    def post(self, request: Request) -> Response:
        """Begin a finding in `project`."""
        data = parse_json_body(request, self)
        project = permissions.project_or_404(request, parse_text(data.get("project"), "project", most=80))
        permissions.require_role(request, project, FINDING_WRITE_ROLE)
        row = create_finding(project, permissions.require_user(request), title=data.get("title"), note=data.get("note"))
        return Response(serialize_full_finding(row), status=201)


class OneFinding(APIView):
    """One finding."""

    scopes = {"PATCH": "annotate", "DELETE": "annotate"}
    takes: ClassVar[AcceptedParams] = {
        "PATCH": {
            "title": "A line.",
            "note": "Markdown.",
            "version": "The version that you read; 412 when somebody has changed it since.",
            "removed": "false: restore it.",
        }
    }

    def get(self, request: Request, pk: int) -> Response:
        """A finding with all that its exhibits hold."""
        return Response(serialize_full_finding(finding_or_404(request, pk)))

    def patch(self, request: Request, pk: int) -> Response:
        """Change `title` or `note`; `removed: false` restores a finding that was removed."""
        data = parse_json_body(request, self)
        row = writable_finding_or_404(request, pk)
        if "removed" in data:
            if parse_boolean(data["removed"], "removed"):
                raise InvalidInputError("Send DELETE to remove a finding.", "removed")
            row = restore_finding(row, permissions.require_user(request))
        version = parse_integer(data.get("version"), "version")
        return Response(
            serialize_full_finding(update_finding(row, title=data.get("title"), note=data.get("note"), version=version))
        )

    def delete(self, request: Request, pk: int) -> Response:
        """Remove a finding; it can be restored."""
        parse_query_params(request, self)
        remove_finding(writable_finding_or_404(request, pk), permissions.require_user(request))
        return Response(status=204)


class Exhibits(APIView):
    """What a finding shows."""

    scopes = {"POST": "annotate"}
    takes: ClassVar[AcceptedParams] = {
        "POST": {
            "sample": "Its id, to show it.",
            "quotes": "With it: texts that it has, or ranges {field: response or prompt, start, end} in characters.",
            "run": "Its id, to show a query of it or its charts.",
            "q": "A query; what it finds now is held.",
            "split": "train or eval; both unless told.",
            "step": "A number; all steps unless told.",
            "step_kind": "What the number counts.",
            "attempt": "`current` (default), `all`, or one attempt's key.",
            "ordering": "As that of samples/.",
            "names": "Metrics, to show their curves in one chart.",
            "runs": "Ids of further runs in that chart.",
            "words": "What it shows, Markdown.",
        }
    }

    def post(self, request: Request, pk: int) -> Response:
        """Show a `sample`, the query `q` of a `run`, or the curves `names` of a `run`, as they are now."""
        data = parse_json_body(request, self)
        row = writable_finding_or_404(request, pk)
        if sum(name in data for name in ("sample", "q", "names")) != 1:
            raise InvalidInputError("Say one of `sample`, `q` (with `run`) and `names` (with `run`).", "sample")
        show = create_sample_item if "sample" in data else create_query_item if "q" in data else create_charts_item
        return Response(serialize_evidence_item(show(request, row, data)), status=201)


class OneExhibit(APIView):
    """One exhibit."""

    scopes = {"PATCH": "annotate", "DELETE": "annotate"}
    takes: ClassVar[AcceptedParams] = {
        "PATCH": {
            "words": "What it shows, Markdown.",
            "began": "The words that you read; 412 when somebody has changed them since.",
            "move": "Places down; up where negative.",
        }
    }

    def patch(self, request: Request, pk: int, exhibit_pk: int) -> Response:
        """Change the `words` beside it, or `move` it."""
        data = parse_json_body(request, self)
        row = evidence_item_or_404(request, pk, exhibit_pk)
        if "words" in data:
            row = set_evidence_note(row, data["words"], began=data.get("began"))
        if move := parse_integer(data.get("move"), "move", least=-MAX_EVIDENCE_ITEMS, most=MAX_EVIDENCE_ITEMS):
            move_evidence(row, move)
            row.refresh_from_db()
        return Response(serialize_evidence_item(row))

    def delete(self, request: Request, pk: int, exhibit_pk: int) -> Response:
        """Take it out of the finding."""
        parse_query_params(request, self)
        remove_evidence(evidence_item_or_404(request, pk, exhibit_pk), permissions.require_user(request))
        return Response(status=204)


def visible_findings(request: Request) -> QuerySet[Finding]:
    rows = Finding.objects.filter(project__in=permissions.visible_projects(request))
    return rows.select_related("project", "user")


def finding_or_404(request: Request, pk: int) -> Finding:
    row: Finding | None = visible_findings(request).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no finding {pk} that you may see.")
    return row


def writable_finding_or_404(request: Request, pk: int) -> Finding:
    row = finding_or_404(request, pk)
    permissions.require_role(request, row.project, FINDING_WRITE_ROLE)
    return row


def evidence_item_or_404(request: Request, pk: int, exhibit_pk: int) -> EvidenceItem:
    finding = writable_finding_or_404(request, pk)
    row = finding.exhibits.select_related("finding__project", "user").filter(pk=min(exhibit_pk, 2**63 - 1)).first()
    if row is None:
        raise Http404(f"This finding has no exhibit {exhibit_pk}.")
    return row


def create_sample_item(request: Request, row: Finding, data: dict[str, Any]) -> EvidenceItem:
    sample = permissions.sample_or_404(request, parse_text(data["sample"], "sample", most=60))
    same_project(row, sample.step.run)
    body = load_body(sample)
    asked_for = data.get("quotes") or []
    if not isinstance(asked_for, list) or len(asked_for) > MAX_QUOTES:
        raise InvalidInputError(f"`quotes` must be a list of at most {MAX_QUOTES} texts or ranges.", "quotes")
    quotes = [quote(body, one) for one in asked_for]
    return add_sample_evidence(row, sample, permissions.require_user(request), quotes=quotes, words=data.get("words"))


def quote(body: Any, one: Any) -> Quote:
    """Raises BadInput."""
    if isinstance(one, str) and len(one) <= MAX_QUOTE_CHARS:
        return find_quote(body, one)
    if not isinstance(one, dict) or set(one) != {"field", "start", "end"}:
        raise InvalidInputError("A quote is a text of the sample, or {field, start, end}.", "quotes")
    start, end = (parse_integer(one[name], f"quotes.{name}") or 0 for name in ("start", "end"))
    return build_quote(body, str(one["field"]), start, end)


def create_query_item(request: Request, row: Finding, data: dict[str, Any]) -> EvidenceItem:
    return add_query_evidence(
        row,
        run_of(request, row, data),
        permissions.require_user(request),
        split=parse_choice(data.get("split"), "split", SPLITS, default=""),
        step=parse_integer(data.get("step"), "step"),
        step_kind=parse_choice(data.get("step_kind"), "step_kind", STEP_KINDS, default=""),
        attempt="" if data.get("attempt") == "current" else parse_text(data.get("attempt"), "attempt", most=120),
        q=parse_text(data["q"], "q", most=8000),
        ordering=parse_text(data.get("ordering"), "ordering", most=40) or "score",
        words=data.get("words"),
    )


def create_charts_item(request: Request, row: Finding, data: dict[str, Any]) -> EvidenceItem:
    names, uids = strings(data["names"], "names", 300), strings(data.get("runs") or [], "runs", 64)
    first = run_of(request, row, data)
    others = [permissions.run_or_404(request, uid) for uid in uids[: MAX_CHART_RUNS - 1] if uid != first.uid]
    for other in others:
        same_project(row, other)
    attempt = parse_text(data.get("attempt"), "attempt", most=120) or "current"
    by = permissions.require_user(request)
    return add_chart_evidence(row, [first, *others], names, by, attempt=attempt, words=data.get("words"))


def run_of(request: Request, row: Finding, data: dict[str, Any]) -> Run:
    run = permissions.run_or_404(request, parse_text(data.get("run"), "run", most=64))
    same_project(row, run)
    return run


def same_project(row: Finding, run: Run) -> None:
    if run.project_id != row.project_id:
        raise InvalidInputError(f"The finding belongs to {row.project.slug}, {run.name} does not.", "run")


def strings(value: Any, field: str, most: int) -> list[str]:
    if not isinstance(value, list):
        raise InvalidInputError(f"`{field}` must be a list of strings.", field)
    return [parse_text(one, field, most=most) for one in value]


def serialize_finding(row: Finding) -> dict[str, Any]:
    return {
        "id": row.pk,
        "project": row.project.slug,
        "title": row.title,
        "note": row.note,
        "user": row.user.get_username(),
        "version": row.version,
        "url": build_public_url(f"/findings/{row.pk}/"),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "removed_at": row.removed_at,
    }


def serialize_full_finding(row: Finding) -> dict[str, Any]:
    return {
        **serialize_finding(row),
        "exhibits": [serialize_evidence_item(one) for one in row.exhibits.select_related("user")],
    }


def serialize_evidence_item(row: EvidenceItem) -> dict[str, Any]:
    return {
        "id": row.pk,
        "kind": row.kind,
        "words": row.words,
        "user": row.user.get_username(),
        "created_at": row.created_at,
        "held": row.shown,
    }
