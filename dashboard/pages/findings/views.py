"""Findings: the list, one finding, its text changed, the file that holds it all."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import permissions
from dashboard.pages.common import (
    get_signed_in_user,
    is_script_request,
    render_markdown,
    render_page_or_panel,
    respond_error,
    respond_success,
    role_allows,
)
from dashboard.pages.findings import presenter
from rollouts.errors import InvalidInputError, NotFoundError, RolloutError
from rollouts.findings import (
    move_evidence,
    remove_evidence,
    remove_finding,
    restore_finding,
    set_evidence_note,
    update_finding,
)
from rollouts.lib import parse_integer
from rollouts.models import EvidenceItem, Finding

PANELS = {"findings": "findings/table.html", "finding": "findings/detail.html"}
MAX_FINDINGS = 200
KINDS = {"samples": "sample", "queries": "query", "charts": "chart"}
MOVES = {"up": -1, "down": 1}
# A file that somebody opens from a disk or a mail: nothing in it may run, load or lead a form elsewhere.
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@login_required
@require_safe
def findings_page(request: HttpRequest) -> HttpResponseBase:
    """`?project=` narrows to one, `?name=` to titles that hold it, `?removed=1` shows those that were removed."""
    return render_page_or_panel(request, "findings/page.html", PANELS, lambda panel: build_findings_context(request))


def build_findings_context(request: HttpRequest) -> dict[str, Any]:
    asked = {name: request.GET.get(name, "").replace("\0", "") for name in ("project", "name", "removed")}
    counts = {name: Count("exhibits", filter=Q(exhibits__kind=kind)) for name, kind in KINDS.items()}
    found = visible_findings(request).annotate(**counts).order_by("-updated_at", "-pk")
    found = found.filter(removed_at__isnull=not asked["removed"])
    if asked["project"]:
        found = found.filter(project__slug=asked["project"])
    if asked["name"]:
        found = found.filter(Q(title__icontains=asked["name"]) | Q(note__icontains=asked["name"]))
    rows = list(found[: MAX_FINDINGS + 1])
    return {
        **asked,
        "findings": rows[:MAX_FINDINGS],
        "more": len(rows) > MAX_FINDINGS,
        "projects": list(permissions.visible_projects(request).order_by("slug")),
        "none": not rows and not any(asked.values()),
    }


def visible_findings(request: HttpRequest) -> QuerySet[Finding]:
    rows = Finding.objects.filter(project__in=permissions.visible_projects(request))
    return rows.select_related("project", "user")


def finding_or_404(request: HttpRequest, pk: int, role: str = "viewer") -> Finding:
    """Raises Http404, and PermissionDenied below `role`."""
    row: Finding | None = visible_findings(request).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(_("Finding not found, or you have no access to it."))
    permissions.require_role(request, row.project, role)
    return row


@login_required
@require_safe
def finding_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    row = finding_or_404(request, pk)
    shown = row.exhibits.order_by("pk").values_list("pk", "run", "run__deleted_at")
    state = (row.updated_at, row.removed_at, row.project.role_of(request.user), list(shown))
    return render_page_or_panel(
        request, "findings/finding.html", PANELS, lambda panel: build_finding_context(request, row), *state
    )


def build_finding_context(request: HttpRequest, row: Finding) -> dict[str, Any]:
    exhibits = presenter.build_evidence_items(row)
    return {
        "finding": row,
        "note": render_markdown(row.note),
        "exhibits": exhibits,
        "may_write": role_allows(row.project.role_of(request.user), "annotator") and row.removed_at is None,
        "may_restore": role_allows(row.project.role_of(request.user), "annotator"),
        "chat": presenter.build_finding_message(row, exhibits, request.path),
    }


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit_finding_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Title and note; what somebody else saved meanwhile is not overwritten, and what was typed is shown again: on a
    page at this address, so whoever comes back to it, with no form, is led to the finding."""
    if request.method != "POST":
        return redirect("finding", pk)
    row = finding_or_404(request, pk, "annotator")
    told = {name: request.POST.get(name, "") for name in ("title", "note")}
    try:
        update_finding(row, **told, version=parse_integer(request.POST.get("version"), "version"))
    except RolloutError as error:
        if is_script_request(request):
            return respond_error(request, error, "finding", row.pk)
        shown = {**build_finding_context(request, finding_or_404(request, pk)), "draft": told, "problem": str(error)}
        return render(request, "findings/finding.html", shown, status=400)
    return respond_success(request, _("Finding saved."), "finding", row.pk)


@login_required
@require_POST
def remove_finding_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Removes a finding, or restores one with `restore`."""
    row = finding_or_404(request, pk, "annotator")
    if request.POST.get("restore"):
        restore_finding(row, get_signed_in_user(request))
        return respond_success(request, _("Finding restored."), "finding", row.pk)
    remove_finding(row, get_signed_in_user(request))
    return respond_success(
        request, _("“{title}” removed. You can restore it on its page.").format(title=row.title), "findings"
    )


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit_evidence_item_view(request: HttpRequest, pk: int) -> HttpResponse:
    """`do` moves an exhibit `up` or `down`, takes it `out`, or saves the `words` beside it, as `edit` does."""
    rows = EvidenceItem.objects.filter(finding__in=visible_findings(request)).select_related("finding__project")
    row = rows.filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(_("Item not found, or you have no access to it."))
    if request.method != "POST":
        return redirect("finding", row.finding_id)
    permissions.require_role(request, row.finding.project, "annotator")
    wanted = request.POST.get("do")
    try:
        if wanted == "words":
            set_evidence_note(row, request.POST.get("words", ""), began=request.POST.get("began"))
        elif wanted == "out":
            remove_evidence(row, get_signed_in_user(request))
        else:
            move_evidence(row, parse_move(wanted))
    except RolloutError as error:
        if isinstance(error, NotFoundError) or wanted != "words" or is_script_request(request):
            return respond_error(request, error, "finding", row.finding_id)
        spoken = {"pk": row.pk, "words": request.POST.get("words", ""), "problem": str(error)}
        shown = {**build_finding_context(request, finding_or_404(request, row.finding_id)), "spoken": spoken}
        return render(request, "findings/finding.html", shown, status=400)
    return respond_success(request, _("Saved."), "finding", row.finding_id)


def parse_move(wanted: str | None) -> int:
    """How far down an exhibit goes. Raises BadInput for what is no deed."""
    if wanted not in MOVES:
        said = _("`{field}` must be one of: {allowed}.")
        raise InvalidInputError(said.format(field="do", allowed=", ".join((*MOVES, "out", "words"))), "do")
    return MOVES[wanted]


@login_required
@require_safe
def export_finding_view(request: HttpRequest, pk: int) -> HttpResponse:
    """The finding as one HTML file without script, which asks for nothing."""
    row = finding_or_404(request, pk)
    shown = {"finding": row, "note": render_markdown(row.note), "exhibits": presenter.build_evidence_items(row)}
    address = presenter.build_absolute_url(request.path.removesuffix("export/"))
    response = render(
        request, "findings/export.html", {**shown, "file": True, "policy": FILE_POLICY, "address": address}
    )
    response["Content-Disposition"] = f'attachment; filename="{slugify(row.title)[:80] or "finding"}.html"'
    response["Content-Security-Policy"] = f"{FILE_POLICY}; frame-ancestors 'none'; sandbox"
    return response
