"""Findings: the list, one finding, its edits and its export as one file."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import permissions
from dashboard.image_response import build_image_response
from dashboard.pages import common
from dashboard.pages.findings import presenter
from dashboard.public_urls import add_public_origin
from rollouts.errors import InvalidInputError, NotFoundError, RolloutError
from rollouts.findings import (
    move_evidence,
    remove_evidence,
    remove_finding,
    restore_finding,
    reviews_blind_queue,
    set_evidence_comment,
    update_finding,
)
from rollouts.lib import parse_integer
from rollouts.models import EvidenceItem, Finding

PANELS = {"findings": "findings/table.html", "finding": "findings/detail.html"}
MAX_FINDINGS = 200
KINDS = {"samples": "sample", "queries": "query", "charts": "chart"}
MOVES = {"up": -1, "down": 1}
# The exported file is opened from a disk or a mail: nothing in it may run, load or submit a form.
FILE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@login_required
@require_safe
def findings_page(request: HttpRequest) -> HttpResponseBase:
    """Filters: `project`, `name` (part of title or note), `removed=1` for removed findings."""
    return common.render_page_or_panel(
        request, "findings/page.html", PANELS, lambda panel: build_findings_context(request)
    )


def build_findings_context(request: HttpRequest) -> dict[str, Any]:
    params = {name: request.GET.get(name, "").replace("\0", "") for name in ("project", "name", "removed")}
    counts = {name: Count("exhibits", filter=Q(exhibits__kind=kind)) for name, kind in KINDS.items()}
    findings = permissions.visible_findings(request).annotate(**counts).order_by("-updated_at", "-pk")
    findings = findings.filter(removed_at__isnull=not params["removed"])
    if params["project"]:
        findings = findings.filter(project__slug=params["project"])
    if params["name"]:
        findings = findings.filter(Q(title__icontains=params["name"]) | Q(note__icontains=params["name"]))
    rows = list(findings[: MAX_FINDINGS + 1])
    roles = permissions.visible_projects(request).load_with_roles(request.user)
    editable = [project.slug for project, role in roles.items() if permissions.role_allows(role, "annotator")]
    return {
        **params,
        "findings": rows[:MAX_FINDINGS],
        "more": len(rows) > MAX_FINDINGS,
        "projects": list(roles),
        "may_add": params["project"] in editable if params["project"] else bool(editable),
        "is_empty": not rows and not any(params.values()),
    }


@login_required
@require_safe
def finding_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    row = permissions.finding_or_404(request, pk)
    items = list(row.exhibits.order_by("pk").values_list("pk", "run", "run__deleted_at"))
    is_blind = reviews_blind_queue(request.user, row.project)
    state = (row.updated_at, row.removed_at, row.project.role_of(request.user), items, is_blind)
    return common.render_page_or_panel(
        request, "findings/finding.html", PANELS, lambda panel: build_finding_context(request, row, is_blind), *state
    )


def build_finding_context(request: HttpRequest, finding: Finding, is_blind: bool) -> dict[str, Any]:
    items = presenter.build_evidence_items(finding, is_blind=is_blind)
    role = finding.project.role_of(request.user)
    may_restore = permissions.role_allows(role, "annotator")
    return {
        "finding": finding,
        "note": common.render_note(finding.note),
        "items": items,
        "may_write": may_restore and finding.removed_at is None,
        "may_restore": may_restore,
        "may_share": permissions.role_allows(role, "owner") and finding.removed_at is None,
        "chat_message": presenter.build_finding_message(finding, items, request.path),
    }


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit_finding_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Saves title and note. If another user has saved since, nothing is overwritten and the form shows the typed text
    again. That page has this URL, so a GET redirects to the finding."""
    if request.method != "POST":
        return redirect("finding", pk)
    row = permissions.finding_or_404(request, pk, role="annotator")
    draft = {name: request.POST.get(name, "") for name in ("title", "note")}
    try:
        update_finding(row, **draft, version=parse_integer(request.POST.get("version"), "version"))
    except RolloutError as error:
        if common.is_script_request(request):
            return common.respond_error(request, error, "finding", row.pk)
        return render_failed_edit(request, pk, {"draft": draft, "error": str(error)})
    return common.respond_success(request, _("Finding saved."), "finding", row.pk)


def render_failed_edit(request: HttpRequest, pk: int, draft: dict[str, Any]) -> HttpResponse:
    row = permissions.finding_or_404(request, pk)
    context = build_finding_context(request, row, reviews_blind_queue(request.user, row.project)) | draft
    return render(request, "findings/finding.html", context, status=400)


@login_required
@require_POST
def remove_finding_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Removes a finding, or restores one with `restore`."""
    row = permissions.finding_or_404(request, pk, role="annotator")
    if request.POST.get("restore"):
        restore_finding(row, common.get_signed_in_user(request))
        return common.respond_success(request, _("Finding restored."), "finding", row.pk)
    remove_finding(row, common.get_signed_in_user(request))
    message = _("“{title}” removed. You can restore it on its page.")
    return common.respond_success(request, message.format(title=row.title), "findings")


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit_evidence_item_view(request: HttpRequest, pk: int) -> HttpResponse:
    """`do` is `up` or `down` to move the item, `out` to remove it, `words` to save its comment. A GET redirects, as in
    `edit_finding_view`."""
    rows = EvidenceItem.objects.filter(finding__in=permissions.visible_findings(request)).select_related(
        "finding__project"
    )
    row = rows.filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(_("Item not found, or you have no access to it."))
    if request.method != "POST":
        return redirect("finding", row.finding_id)
    permissions.require_role(request, row.finding.project, "annotator")
    action, text = request.POST.get("do", ""), request.POST.get("words", "")
    try:
        if action == "words":
            set_evidence_comment(row, text, began=request.POST.get("began"))
        elif action == "out":
            remove_evidence(row, common.get_signed_in_user(request))
        elif action in MOVES:
            move_evidence(row, MOVES[action])
        else:
            message = _("`{field}` must be one of: {allowed}.")
            raise InvalidInputError(message.format(field="do", allowed=", ".join((*MOVES, "out", "words"))), "do")
    except RolloutError as error:
        if isinstance(error, NotFoundError) or action != "words" or common.is_script_request(request):
            return common.respond_error(request, error, "finding", row.finding_id)
        item_draft = {"pk": row.pk, "text": text, "error": str(error)}
        return render_failed_edit(request, row.finding_id, {"item_draft": item_draft})
    return common.respond_success(request, _("Saved."), "finding", row.finding_id)


@login_required
@require_safe
def evidence_image_view(request: HttpRequest, pk: int, digest: str) -> HttpResponse:
    """An image of a sample in a finding. The copy survives the run."""
    findings = permissions.visible_findings(request)
    row = EvidenceItem.objects.filter(pk=pk, finding__in=findings).first() if pk < 2**63 else None
    if row is None or not any(image["sha256"] == digest for image in row.shown.get("images", [])):
        raise Http404(_("Image not found."))
    return build_image_response(request, row.finding.project.image_owner, digest)


@login_required
@require_safe
def export_finding_view(request: HttpRequest, pk: int) -> HttpResponse:
    """The finding as one HTML file without script that loads nothing."""
    row = permissions.finding_or_404(request, pk)
    context = {
        "finding": row,
        "note": common.render_note(row.note, has_links=False),
        "items": presenter.build_evidence_items(
            row, embedded=True, is_blind=reviews_blind_queue(request.user, row.project)
        ),
        "file": True,
        "policy": FILE_POLICY,
        "address": add_public_origin(request.path.removesuffix("export/")),
    }
    response = render(request, "findings/export.html", context)
    response["Content-Disposition"] = f'attachment; filename="{slugify(row.title)[:80] or "finding"}.html"'
    response["Content-Security-Policy"] = f"{FILE_POLICY}; frame-ancestors 'none'; sandbox"
    return response
