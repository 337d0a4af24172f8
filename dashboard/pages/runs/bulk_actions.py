"""What can be done with the runs that are selected in the list: compared, tagged, indexed anew, put away, deleted,
brought back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import permissions
from dashboard.pages.common import clean_param, get_return_url, get_signed_in_user, role_allows
from dashboard.pages.run import MAX_OVERLAYS
from rollouts.compare import TARGET_LETTERS
from rollouts.errors import ConflictError, InvalidInputError, RolloutError
from rollouts.models import Project, Run
from rollouts.runs import (
    TRASH_RETENTION,
    archive_runs,
    load_run_sizes,
    move_runs_to_trash,
    reindex_runs,
    restore_run,
    tag_runs,
)

MAX_SELECTED_RUNS = 500
SCOPE_BY_ACTION = dict.fromkeys(("tag", "untag", "index", "archive", "unarchive"), "ingest") | {"restore": "admin"}


@login_required
@require_POST
def apply_bulk_action_view(request: HttpRequest) -> HttpResponse:
    """Does `do` with each `run`; all of them or none, for whoever may do it with every one."""
    what = request.POST.get("do", "")
    runs = find_selected_runs(request, request.POST.getlist("run"), binned=what == "restore")
    again = HttpResponseRedirect(get_return_url(request, "runs"))
    if not runs:
        messages.error(request, _("Select runs first: use their checkboxes or press x."))
        return again
    if what in LINKS:
        return redirect(LINKS[what](runs))
    try:
        messages.success(request, apply_bulk_action(what, runs, get_signed_in_user(request), request))
    except (PermissionDenied, RolloutError) as refused:
        messages.error(request, str(refused))
    return again


def find_selected_runs(request: HttpRequest, uids: Sequence[str], *, binned: bool = False) -> list[Run]:
    """The runs of these uids that the person may see, in their order."""
    seen = permissions.trashed_runs(request) if binned else permissions.visible_runs(request)
    wanted = [clean_param(uid)[:64] for uid in uids[:MAX_SELECTED_RUNS]]
    found = {run.uid: run for run in seen.filter(uid__in=wanted).select_related("project")}
    return [found[uid] for uid in dict.fromkeys(wanted) if uid in found]


def apply_bulk_action(what: str, runs: Sequence[Run], by: User, request: HttpRequest) -> str:
    """What came of it, in a sentence. Raises PermissionDenied, BadInput."""
    if what not in SCOPE_BY_ACTION:
        raise InvalidInputError(_("Choose an action for the selected runs."), "do")
    require_role_in_projects(by, runs, SCOPE_BY_ACTION[what])
    word = clean_param(request.POST.get("tag", "")).strip()
    if what in ("tag", "untag") and not word:
        raise InvalidInputError(_("Enter a tag first."), "tag")
    if what in ("tag", "untag"):
        return describe_bulk_result(what, tag_runs(runs, by, word, off=what == "untag"), tag=word)
    if what == "index":
        return describe_bulk_result(what, reindex_runs(runs, by))
    if what == "restore":
        return describe_bulk_result(what, len([restore_run(run, by) for run in runs]))
    return describe_bulk_result(what, archive_runs(runs, by, back=what == "unarchive"))


def require_role_in_projects(by: User, runs: Sequence[Run], scope: str) -> None:
    """Raises PermissionDenied that names the project."""
    for project in {run.project_id: run.project for run in runs}.values():
        permissions.require_role(by, project, permissions.ROLE_BY_SCOPE[scope])


def describe_bulk_result(what: str, count: int, **holes: str) -> str:
    """What was done with how many runs, or dumps of theirs."""
    said = {
        "tag": ngettext("Tag {tag} added to {count} run.", "Tag {tag} added to {count} runs.", count),
        "untag": ngettext("Tag {tag} removed from {count} run.", "Tag {tag} removed from {count} runs.", count),
        "index": ngettext("Re-indexing {count} dump.", "Re-indexing {count} dumps.", count),
        "restore": ngettext("{count} run restored.", "{count} runs restored.", count),
        "unarchive": ngettext("{count} run unarchived.", "{count} runs unarchived.", count),
        "archive": ngettext(
            "{count} run archived. Nothing was deleted.",
            "{count} runs archived. Nothing was deleted.",
            count,
        ),
        "bin": ngettext(
            "{count} run moved to Trash. It will be deleted permanently after {days} days.",
            "{count} runs moved to Trash. They will be deleted permanently after {days} days.",
            count,
        ),
    }
    return said[what].format(count=count, **holes)


# --- to other pages ---------------------------------------------------------------------------------------------------


def build_compare_link(runs: Sequence[Run]) -> str:
    cells = ",".join(f"{run.uid}@latest" for run in runs[: len(TARGET_LETTERS)])
    return f"{reverse('compare')}?of={quote(cells, safe='@,')}"


def build_overlay_url(runs: Sequence[Run]) -> str:
    address = reverse("run", args=[runs[0].uid])
    others = ",".join(run.uid for run in runs[1 : MAX_OVERLAYS + 1])
    return f"{address}?runs={others}" if others else address


def build_deletion_link(runs: Sequence[Run]) -> str:
    return f"{reverse('tidy-delete')}?" + "&".join(f"run={run.uid}" for run in runs)


LINKS: dict[str, Callable[[Sequence[Run]], str]] = {
    "compare": build_compare_link,
    "overlay": build_overlay_url,
    "delete": build_deletion_link,
}


# --- deletion ---------------------------------------------------------------------------------------------------------


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def delete_runs_view(request: HttpRequest) -> HttpResponse:
    """Says what would go, and does it when told so: 409 while one of the runs has pins, and then none goes."""
    return trash_selected_runs(request) if request.method == "POST" else render_delete_page(request)


def render_delete_page(request: HttpRequest, said: str = "", status: int = 200) -> HttpResponse:
    told = request.POST if request.method == "POST" else request.GET
    runs = find_selected_runs(request, told.getlist("run"))
    if not runs:
        return redirect("runs")
    return render(request, "runs/delete.html", build_delete_context(runs, request) | {"said": said}, status=status)


def build_delete_context(runs: Sequence[Run], request: HttpRequest) -> dict[str, Any]:
    found = load_run_sizes(runs)
    projects_of: dict[int, Project] = {run.project_id: run.project for run in runs}
    roles = {pk: one.role_of(get_signed_in_user(request)) for pk, one in projects_of.items()}
    lines = [(run, found[run.pk], role_allows(roles[run.project_id], "owner")) for run in runs]
    return {
        "lines": lines,
        "pinned": [run for run, weight, _ in lines if weight.pins],
        "forbidden": [run for run, _, may in lines if not may],
        "days": TRASH_RETENTION.days,
    }


def trash_selected_runs(request: HttpRequest) -> HttpResponse:
    runs, by = find_selected_runs(request, request.POST.getlist("run")), get_signed_in_user(request)
    require_role_in_projects(by, runs, "admin")
    try:
        move_runs_to_trash(runs, by)
    except ConflictError as pinned:
        return render_delete_page(request, str(pinned), 409)
    messages.success(request, describe_bulk_result("bin", len(runs), days=str(TRASH_RETENTION.days)))
    return redirect("runs")
