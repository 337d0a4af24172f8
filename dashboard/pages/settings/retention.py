"""Retention of one project: its policy, the dry run, what was dropped, and the quota."""

import math
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from rollouts.errors import InvalidInputError
from rollouts.models import Project, RetentionPolicy, RunDiskUsage
from rollouts.retention import (
    POLICY_FIELDS,
    describe_policy,
    describe_raw_reason,
    describe_reason,
    describe_rule,
    load_policy,
    load_project_drops,
    load_quota_status,
    set_quota,
    start_pass,
    store_report,
    update_policy,
)
from rollouts.runs import sum_project_usage
from workers import dispatch

MAX_LISTED_RUNS = 50
GIGABYTE = 10**9
MAX_GIGABYTES = 10**9
FIELD_LABELS = {
    "every": "k", "groups": gettext_lazy("random groups"), "extremes": gettext_lazy("best and worst, each"),
    "seed": gettext_lazy("seed"), "after_days": gettext_lazy("when a step is older than"),
    "max_age_days": gettext_lazy("older than"), "max_steps": gettext_lazy("newest steps of each run"),
    "max_gb": gettext_lazy("sample bodies and dumps together, in GB"),
    "raw_after_days": gettext_lazy("drop verified raw dumps after days (empty: keep)"),
    "quota_gb": gettext_lazy("Quota in GB"),
}  # fmt: skip


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def retention_page(request: HttpRequest, slug: str) -> HttpResponse:
    """A post saves the policy, for owners. A policy that is not valid is shown again with the error."""
    if request.method != "POST":
        project = permissions.project_or_404(request, slug, role="maintainer")
        return render(request, "settings/retention.html", build_retention_context(request, project))
    project = permissions.project_or_404(request, slug, role="owner")
    draft: dict[str, Any] = {
        name: common.clean_param(request.POST.get(name, "")) for name in POLICY_FIELDS if name in request.POST
    }
    try:
        if "max_gb" in request.POST:
            draft["max_bytes"] = parse_gigabytes(request.POST["max_gb"], "max_gb")
        policy = update_policy(project, common.get_signed_in_user(request), draft)
        store_report(policy)
    except InvalidInputError as error:
        message = common.format_form_error(error, FIELD_LABELS)
        context = build_retention_context(request, project, error=message, draft=request.POST)
        return render(request, "settings/retention.html", context, status=400)
    messages.success(request, _("Policy saved. Nothing is dropped before the next pass; see the dry run below."))
    return redirect("retention", slug)


def parse_gigabytes(text: str, field: str) -> int | None:
    """Returns bytes, None for an empty text. Raises InvalidInputError."""
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value * GIGABYTE <= MAX_GIGABYTES * GIGABYTE:
        message = _("`{field}` must be a number of gigabytes above 0, or empty.").format(field=field)
        raise InvalidInputError(message, field)
    return int(value * GIGABYTE)


def build_retention_context(request: HttpRequest, project: Project, **more: Any) -> dict[str, Any]:
    policy, quota = load_policy(project), load_quota_status(project)
    drops = load_project_drops(project)
    usage = sum_project_usage([project]).get(project.pk, {})
    report = policy.report if policy.report.get("totals") else None
    return {
        "tab": "settings",
        "project": project,
        "policy": policy,
        "sentences": describe_policy(policy),
        "draft": more.get("draft") or build_draft(policy),
        "trains": RetentionPolicy.Train.values,
        "owner": permissions.role_allows(project.role_of(request.user), "owner"),
        "admin": common.get_signed_in_user(request).is_superuser,
        "quota": quota,
        "quota_gb": f"{project.quota / GIGABYTE:g}" if project.quota else "",
        "kinds": [(name, usage.get(kind, 0)) for kind, name in common.list_disk_kinds()],
        "used": sum(usage.get(kind, 0) for kind in RunDiskUsage.KINDS),
        "dropped": {name: sum(getattr(drop, name) for drop in drops.values()) for name in ("samples", "bytes", "steps")}
        | {"raw_dumps": sum(drop.raw_dumps for drop in drops.values())},
        **(build_report_context(report) if report else {}),
        **more,
    }


def build_draft(policy: RetentionPolicy) -> dict[str, Any]:
    values = {name: getattr(policy, name) for name in POLICY_FIELDS}
    numbers = {name: "" if value is None else value for name, value in values.items()}
    return numbers | {"max_gb": f"{policy.max_bytes / GIGABYTE:g}" if policy.max_bytes else ""}


def build_report_context(report: dict[str, Any]) -> dict[str, Any]:
    totals, raw = report["totals"], report["raw"]
    rows = [row for row in report["runs"] if row["drops"]]
    rows.sort(key=lambda row: -sum(row["bytes"].values()))
    listed = [
        {
            **row,
            "size": sum(row["bytes"].values()),
            "step_count": len(row["steps"]) + row.get("steps_not_listed", 0),
            "rules": [describe_rule(rule) for rule in row["rules"]],
            "reasons": [(describe_reason(reason), count) for reason, count in row["kept"].items()],
        }
        for row in rows[:MAX_LISTED_RUNS]
    ]
    return {
        "report": report,
        "made_at": parse_datetime(report["made_at"]),
        "frees": sum(totals["bytes"].values()) + raw["bytes"],
        "frees_by_kind": [
            (name, totals["bytes"][kind]) for kind, name in common.list_disk_kinds() if kind in totals["bytes"]
        ],
        "runs": listed,
        "more_runs": max(0, len(rows) - MAX_LISTED_RUNS),
        "kept": [(describe_reason(reason), count) for reason, count in totals["kept"].items()],
        "raw_kept": [(describe_raw_reason(reason), count) for reason, count in raw["kept"].items()],
        "confirmation": build_confirmation(report),
    }


def build_confirmation(report: dict[str, Any]) -> str:
    """What an owner types to start a pass. It has the number, so that nobody confirms another report than the one that
    is shown."""
    return f"drop {report['totals']['drops'] + report['raw']['dumps']}"


@login_required
@require_POST
def run_retention_view(request: HttpRequest, slug: str) -> HttpResponse:
    """Makes a dry run; with `confirm`, an owner also starts a pass."""
    confirm = common.clean_param(request.POST.get("confirm", "")).strip().replace(",", "").replace("\u202f", "")
    is_applied = request.POST.get("do") == "apply"
    project = permissions.project_or_404(request, slug, role="owner" if is_applied else "maintainer")
    policy = load_policy(project)
    if not is_applied:
        store_report(policy)
        messages.success(request, _("Dry run done. Nothing was dropped."))
    elif not policy.report.get("totals") or confirm != build_confirmation(policy.report):
        messages.error(request, _("Nothing was dropped: type the words that the dry run shows."))
    else:
        start_pass(policy, common.get_signed_in_user(request))
        dispatch.send_now("apply_retention")
        messages.success(request, _("A worker drops the data in the background."))
    return redirect("retention", project.slug)


@login_required
@require_safe
def download_report_view(request: HttpRequest, slug: str) -> HttpResponse:
    """The last dry run as JSON."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    disposition = {"Content-Disposition": f'attachment; filename="retention-{project.pk}.json"'}
    return JsonResponse(load_policy(project).report, headers=disposition, json_dumps_params={"indent": 1})


@login_required
@require_POST
def save_quota_view(request: HttpRequest, slug: str) -> HttpResponse:
    """For server admins: an owner could otherwise raise the limit that an admin set. A number that is not valid stays
    in the form, with the error."""
    project = permissions.project_or_404(request, slug, role="owner")
    user = common.get_signed_in_user(request)
    if not user.is_superuser:
        messages.error(request, _("Only a server admin can change the quota of a project."))
        return redirect("retention", project.slug)
    typed = common.clean_param(request.POST.get("quota_gb", ""))
    try:
        set_quota(project, user, parse_gigabytes(typed, "quota_gb"))
    except InvalidInputError as error:
        message = common.format_form_error(error, FIELD_LABELS)
        context = build_retention_context(request, project, quota_error=message, quota_gb=typed)
        return render(request, "settings/retention.html", context, status=400)
    messages.success(request, _("Quota saved."))
    return redirect("retention", project.slug)
