"""The actions on the selected runs of the list: compare, overlay, tag, re-index, archive, delete, restore."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import permissions
from dashboard.pages.common import clean_param, get_return_url, get_signed_in_user
from dashboard.pages.run import MAX_OVERLAYS
from rollouts.compare import TARGET_LETTERS
from rollouts.errors import ConflictError, InvalidInputError, RolloutError
from rollouts.models import Run
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
OPPOSITES = {"archive": "unarchive", "unarchive": "archive"}
PAGES_OF_FIRST_RUNS = ("compare", "overlay")
SCOPE_BY_ACTION = dict.fromkeys(("tag", "untag", "index", "archive", "unarchive"), "ingest") | {"restore": "admin"}


@login_required
@require_POST
def apply_bulk_action_view(request: HttpRequest) -> HttpResponse:
    """Applies the action `do` to each `run`: to all of them, or to none if the user may not change one of them."""
    action, uids = request.POST.get("do", ""), list_selected_uids(request.POST.getlist("run"))
    runs = find_selected_runs(request, uids, in_trash=action == "restore")
    try:
        if len(uids) > MAX_SELECTED_RUNS and action not in PAGES_OF_FIRST_RUNS:
            message = _("At most {limit} runs can be changed at once, not {count}.")
            raise InvalidInputError(message.format(limit=MAX_SELECTED_RUNS, count=f"{len(uids):,}"), "run")
        if runs and (url := build_page_url(action, runs)):
            return redirect(url)
        if not runs:
            raise InvalidInputError(_("Select runs first: use their checkboxes or press x."), "run")
        message = apply_bulk_action(action, runs, get_signed_in_user(request), request)
        opposite = OPPOSITES.get(action) if request.POST.get("undo") != "1" else None
        messages.success(request, add_undo(request, message, opposite, runs) if opposite else message)
    except (PermissionDenied, RolloutError) as error:
        messages.error(request, str(error))
    return HttpResponseRedirect(get_return_url(request, "runs"))


def add_undo(request: HttpRequest, message: str, opposite: str, runs: Sequence[Run]) -> SafeString:
    """The message with a button that does the opposite to the same runs."""
    uids = ",".join(run.uid for run in runs)
    context = {"message": message, "opposite": opposite, "uids": uids, "next": get_return_url(request, "runs")}
    return render_to_string("runs/undo.html", context, request)


def list_selected_uids(values: Sequence[str]) -> list[str]:
    """The uids in the values of a form, each once. A value may have several, with commas."""
    uids = ",".join(values).split(",")
    return list(dict.fromkeys(clean_param(uid)[:64] for uid in uids if uid))


def find_selected_runs(request: HttpRequest, uids: Sequence[str], *, in_trash: bool = False) -> list[Run]:
    """The first runs with these uids that the user may see, in the order of the uids."""
    visible = permissions.trashed_runs(request) if in_trash else permissions.visible_runs(request)
    requested = uids[:MAX_SELECTED_RUNS]
    runs = {run.uid: run for run in visible.filter(uid__in=requested).select_related("project")}
    return [runs[uid] for uid in requested if uid in runs]


def build_page_url(action: str, runs: Sequence[Run]) -> str:
    """The URL of the page that an action leads to; empty if the action changes the runs."""
    match action:
        case "compare":
            targets = ",".join(f"{run.uid}@latest" for run in runs[: len(TARGET_LETTERS)])
            return f"{reverse('compare')}?of={quote(targets, safe='@,')}"
        case "overlay":
            others = ",".join(run.uid for run in runs[1 : MAX_OVERLAYS + 1])
            return reverse("run", args=[runs[0].uid]) + (f"?runs={others}" if others else "")
        case "delete":
            return f"{reverse('tidy-delete')}?" + "&".join(f"run={run.uid}" for run in runs)
        case _other:
            return ""


def apply_bulk_action(action: str, runs: Sequence[Run], user: User, request: HttpRequest) -> str:
    """Returns a message about the result. Raises PermissionDenied, InvalidInputError."""
    if action not in SCOPE_BY_ACTION:
        raise InvalidInputError(_("Choose an action for the selected runs."), "do")
    require_role_in_projects(user, runs, SCOPE_BY_ACTION[action])
    tag = clean_param(request.POST.get("tag", "")).strip()
    if action in ("tag", "untag"):
        if not tag:
            raise InvalidInputError(_("Enter a tag first."), "tag")
        count = tag_runs(runs, user, tag, off=action == "untag")
    elif action == "index":
        count = reindex_runs(runs, user)
    elif action == "restore":
        count = len([restore_run(run, user) for run in runs])
    else:
        count = archive_runs(runs, user, back=action == "unarchive")
    return format_bulk_result(action, count, tag=tag)


def require_role_in_projects(user: User, runs: Sequence[Run], scope: str) -> None:
    """Raises PermissionDenied with the name of the project."""
    for project in {run.project_id: run.project for run in runs}.values():
        permissions.require_role(user, project, permissions.ROLE_BY_SCOPE[scope])


def format_bulk_result(action: str, count: int, **values: str) -> str:
    """What was done with how many runs, or with how many of their dumps."""
    texts = {
        "tag": ngettext("Tag {tag} added to {count} run.", "Tag {tag} added to {count} runs.", count),
        "untag": ngettext("Tag {tag} removed from {count} run.", "Tag {tag} removed from {count} runs.", count),
        "index": ngettext("Re-indexing {count} dump.", "Re-indexing {count} dumps.", count),
        "restore": ngettext("{count} run restored.", "{count} runs restored.", count),
        "unarchive": ngettext("{count} run unarchived.", "{count} runs unarchived.", count),
        "archive": ngettext(
            "{count} run archived. Nothing was deleted.", "{count} runs archived. Nothing was deleted.", count
        ),
        "bin": ngettext(
            "{count} run moved to Trash. It will be deleted permanently after {days} days.",
            "{count} runs moved to Trash. They will be deleted permanently after {days} days.",
            count,
        ),
    }
    return texts[action].format(count=count, **values)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def delete_runs_view(request: HttpRequest) -> HttpResponse:
    """GET shows what would be deleted. POST moves the runs to the trash; 409 if one of them has pins."""
    return trash_selected_runs(request) if request.method == "POST" else render_delete_page(request)


def render_delete_page(request: HttpRequest, error: str = "", status: int = 200) -> HttpResponse:
    params = request.POST if request.method == "POST" else request.GET
    runs = find_selected_runs(request, list_selected_uids(params.getlist("run")))
    if not runs:
        return redirect("runs")
    return render(request, "runs/delete.html", build_delete_context(runs, request) | {"error": error}, status=status)


def build_delete_context(runs: Sequence[Run], request: HttpRequest) -> dict[str, Any]:
    sizes, user = load_run_sizes(runs), get_signed_in_user(request)
    roles = {project.pk: project.role_of(user) for project in {run.project_id: run.project for run in runs}.values()}
    rows = [(run, sizes[run.pk], permissions.role_allows(roles[run.project_id], "owner")) for run in runs]
    return {
        "rows": rows,
        "pinned": [run for run, size, _ in rows if size.pins],
        "forbidden": [run for run, _, may_delete in rows if not may_delete],
        "days": TRASH_RETENTION.days,
    }


def trash_selected_runs(request: HttpRequest) -> HttpResponse:
    uids, user = list_selected_uids(request.POST.getlist("run")), get_signed_in_user(request)
    runs = find_selected_runs(request, uids)
    require_role_in_projects(user, runs, "admin")
    try:
        move_runs_to_trash(runs, user)
    except ConflictError as error:
        return render_delete_page(request, str(error), 409)
    message = format_bulk_result("bin", len(runs), days=str(TRASH_RETENTION.days))
    messages.success(request, add_undo(request, message, "restore", runs))
    return redirect("runs")
