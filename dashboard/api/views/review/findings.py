"""Findings: a title, a note, and evidence items that store what they show."""

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, filter_by_owner, row_or_404
from dashboard.api.serializers import pick_fields
from dashboard.api.views.review.reward_check import parse_reward_selection
from dashboard.public_urls import build_public_url
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts import findings, reward_check
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_integer, parse_text
from rollouts.models import EvidenceItem, Finding, Run
from rollouts.samples import load_body

FINDING_WRITE_ROLE = permissions.ROLE_BY_SCOPE["annotate"]
MAX_QUOTE_CHARS = 100_000  # of a quote that is searched in the sample
MAX_CHART_RUNS = 8


class Findings(ApiView):
    """Findings."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {"project": "A slug.", "name": "Part of the title or note.", "removed": "true: removed findings."},
        "POST": {"project": "A slug.", "title": "The observation in one line.", "note": "Markdown."},
    }

    def get(self, request: Request) -> Response:
        """Findings you may see, most recently updated first."""
        query = self.parse_query()
        rows = permissions.visible_findings(request).filter(removed_at__isnull=not query.boolean("removed"))
        rows = filter_by_owner(rows, request, query)
        if name := query.get("name"):
            rows = rows.filter(Q(title__icontains=name) | Q(note__icontains=name))
        return self.paginate(rows.order_by("-updated_at", "-pk"), serialize_finding)

    def post(self, request: Request) -> Response:
        """Create a finding in `project`."""
        data = self.parse_body()
        project = permissions.project_or_404(request, data.text("project", 80))
        permissions.require_role(request, project, FINDING_WRITE_ROLE)
        finding = findings.create_finding(project, self.user, title=data.get("title"), note=data.get("note"))
        return Response(serialize_full_finding(finding, self.user), status=201)


class OneFinding(ApiView):
    """One finding."""

    scopes = {"PATCH": "annotate", "DELETE": "annotate"}
    takes = {
        "PATCH": {
            "title": "One line.",
            "note": "Markdown.",
            "version": "The version that you have read; 412 if the finding has changed since.",
            "removed": "false: restore it.",
        }
    }

    def get(self, request: Request, pk: int) -> Response:
        """A finding with its evidence items."""
        return Response(serialize_full_finding(permissions.finding_or_404(request, pk), self.user))

    def patch(self, request: Request, pk: int) -> Response:
        """Change `title` or `note`; `removed: false` restores a removed finding."""
        data = self.parse_body()
        finding = permissions.finding_or_404(request, pk, role=FINDING_WRITE_ROLE)
        version = data.integer("version")
        with transaction.atomic():
            if "removed" in data:
                if data.boolean("removed"):
                    raise InvalidInputError("Send DELETE to remove a finding.", "removed")
                finding = findings.restore_finding(finding, self.user)
            finding = findings.update_finding(finding, title=data.get("title"), note=data.get("note"), version=version)
        return Response(serialize_full_finding(finding, self.user))

    def delete(self, request: Request, pk: int) -> Response:
        """Remove a finding. It can be restored."""
        self.parse_query()
        findings.remove_finding(permissions.finding_or_404(request, pk, role=FINDING_WRITE_ROLE), self.user)
        return Response(status=204)


class Exhibits(ApiView):
    """Evidence items of a finding."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    searches = ("POST",)
    takes = {
        "POST": {
            "sample": "Id of a sample to show.",
            "quotes": "With `sample`: texts in it, or ranges {field: response or prompt, start, end} in characters.",
            "run": "Id of the run whose query or charts to show.",
            "q": "A query. Its current result is stored.",
            "split": "train or eval; both by default.",
            "step": "A number; all steps by default.",
            "step_kind": "What the number counts.",
            "attempt": "`current` (default), `all`, or the key of an attempt.",
            "ordering": "As for samples/.",
            "names": "Metrics to show in one chart.",
            "rates": "Parameters of the reward check of `run`, an object with `against` or `than`: the rates of both.",
            "runs": "Ids of further runs in that chart.",
            "words": "A note in Markdown.",
        }
    }

    def post(self, request: Request, pk: int) -> Response:
        """Add a `sample`, or of a `run` the query `q`, the curves `names` or the change of `rates`, as they are now."""
        data = self.parse_body()
        finding = permissions.finding_or_404(request, pk, role=FINDING_WRITE_ROLE)
        kinds = {
            "sample": create_sample_item,
            "q": create_query_item,
            "names": create_charts_item,
            "rates": create_rates_item,
        }
        chosen = [create for name, create in kinds.items() if name in data]
        if len(chosen) != 1:
            raise InvalidInputError("Send one of `sample`, and with `run`: `q`, `names` or `rates`.", "sample")
        item = chosen[0](request, finding, data)
        return Response(serialize_evidence_item(item, self.user), status=201)


class OneExhibit(ApiView):
    """One evidence item."""

    scopes = {"PATCH": "annotate", "DELETE": "annotate"}
    takes = {
        "PATCH": {
            "words": "A note in Markdown.",
            "began": "The note that you have read; 412 if it has changed since.",
            "move": "Number of positions to move down; negative: up.",
        }
    }

    def patch(self, request: Request, pk: int, exhibit_pk: int) -> Response:
        """Change the note `words` of the item, or `move` the item."""
        data = self.parse_body()
        item = evidence_item_or_404(request, pk, exhibit_pk)
        if "words" in data:
            item = findings.set_evidence_comment(item, data["words"], began=data.get("began"))
        if move := data.integer("move", minimum=-findings.MAX_EVIDENCE_ITEMS, maximum=findings.MAX_EVIDENCE_ITEMS):
            findings.move_evidence(item, move)
            item.refresh_from_db()
        return Response(serialize_evidence_item(item, self.user))

    def delete(self, request: Request, pk: int, exhibit_pk: int) -> Response:
        """Remove the item from the finding."""
        self.parse_query()
        findings.remove_evidence(evidence_item_or_404(request, pk, exhibit_pk), self.user)
        return Response(status=204)


def evidence_item_or_404(request: Request, pk: int, exhibit_pk: int) -> EvidenceItem:
    items = permissions.finding_or_404(request, pk, role=FINDING_WRITE_ROLE).exhibits.select_related(
        "finding__project", "user"
    )
    return row_or_404(items, exhibit_pk, "evidence item")


def create_sample_item(request: Request, finding: Finding, data: Params) -> EvidenceItem:
    sample = permissions.sample_or_404(request, data.text("sample", 60))
    check_same_project(finding, sample.step.run)
    body = load_body(sample)
    requested = data.get("quotes") or []
    if not isinstance(requested, list) or len(requested) > findings.MAX_QUOTES:
        raise InvalidInputError(f"`quotes` must be a list of at most {findings.MAX_QUOTES} texts or ranges.", "quotes")
    quotes = [parse_quote(body, value) for value in requested]
    user = permissions.require_user(request)
    return findings.add_sample_evidence(finding, sample, user, quotes=quotes, words=data.get("words"))


def parse_quote(body: Any, value: Any) -> findings.Quote:
    """Raises InvalidInputError."""
    if isinstance(value, str) and len(value) <= MAX_QUOTE_CHARS:
        return findings.find_quote(body, value)
    if not isinstance(value, dict) or set(value) != {"field", "start", "end"}:
        raise InvalidInputError("A quote is a text of the sample, or {field, start, end}.", "quotes")
    start, end = (parse_integer(value[name], f"quotes.{name}") or 0 for name in ("start", "end"))
    return findings.build_quote(body, str(value["field"]), start, end)


def create_query_item(request: Request, finding: Finding, data: Params) -> EvidenceItem:
    return findings.add_query_evidence(
        finding,
        find_requested_run(request, finding, data),
        permissions.require_user(request),
        split=data.choice("split", SPLITS),
        step=data.step(),
        step_kind=data.choice("step_kind", STEP_KINDS),
        attempt=data.attempt(),
        q=data.text("q", 8000),
        ordering=data.text("ordering", 40) or "score",
        words=data.get("words"),
    )


def create_rates_item(request: Request, finding: Finding, data: Params) -> EvidenceItem:
    run = find_requested_run(request, finding, data)
    requested = data.get("rates")
    if not isinstance(requested, dict) or not all(isinstance(value, str) for value in requested.values()):
        raise InvalidInputError('`rates` must be an object of texts, such as {"steps": "41-80"}.', "rates")
    selection = parse_reward_selection(request, run, requested)
    if not selection.is_comparison:
        raise InvalidInputError("`rates` needs another run, `against`, or other steps, `than`.", "rates")
    if selection.other is not None:
        check_same_project(finding, selection.other)
    snapshot = reward_check.snapshot_rates(selection)
    user = permissions.require_user(request)
    return findings.store_evidence(finding, EvidenceItem.Kind.RATES, run, snapshot, user, data.get("words"))


def create_charts_item(request: Request, finding: Finding, data: Params) -> EvidenceItem:
    names, uids = parse_texts(data["names"], "names", 300), parse_texts(data.get("runs") or [], "runs", 64)
    first = find_requested_run(request, finding, data)
    others = [permissions.run_or_404(request, uid) for uid in uids[: MAX_CHART_RUNS - 1] if uid != first.uid]
    for run in others:
        check_same_project(finding, run)
    attempt, user = data.text("attempt", 120) or "current", permissions.require_user(request)
    return findings.add_chart_evidence(finding, [first, *others], names, user, attempt=attempt, words=data.get("words"))


def find_requested_run(request: Request, finding: Finding, data: Params) -> Run:
    run = permissions.run_or_404(request, data.text("run", 64))
    check_same_project(finding, run)
    return run


def check_same_project(finding: Finding, run: Run) -> None:
    if run.project_id != finding.project_id:
        raise InvalidInputError(f"The finding belongs to {finding.project.slug}, {run.name} does not.", "run")


def parse_texts(value: Any, field: str, max_chars: int) -> list[str]:
    if not isinstance(value, list):
        raise InvalidInputError(f"`{field}` must be a list of strings.", field)
    return [parse_text(text, field, max_chars=max_chars) for text in value]


def serialize_finding(row: Finding) -> dict[str, Any]:
    return {
        "id": row.pk,
        "project": row.project.slug,
        "user": row.user.get_username(),
        "url": build_public_url(f"/findings/{row.pk}/"),
        **pick_fields(row, "title", "note", "version", "created_at", "updated_at", "removed_at"),
    }


def serialize_full_finding(row: Finding, reader: User) -> dict[str, Any]:
    is_blind = findings.reviews_blind_queue(reader, row.project)
    items = [build_evidence_json(item, is_blind) for item in row.exhibits.select_related("user")]
    return {**serialize_finding(row), "exhibits": items}


def serialize_evidence_item(row: EvidenceItem, reader: User) -> dict[str, Any]:
    return build_evidence_json(row, findings.reviews_blind_queue(reader, row.finding.project))


def build_evidence_json(row: EvidenceItem, is_blind: bool) -> dict[str, Any]:
    values = pick_fields(row, "kind", "words", "created_at")
    held = findings.serialize_evidence(row, is_blind=is_blind)
    return {"id": row.pk, "user": row.user.get_username(), "held": held, **values}
