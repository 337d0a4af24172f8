"""The retention policy and the quota of a project."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.utils.translation import override
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from rollouts.models import Project
from rollouts.retention import (
    POLICY_FIELDS,
    describe_policy,
    load_policy,
    load_project_drops,
    load_quota_status,
    serialize_policy,
    set_quota,
    start_pass,
    store_report,
    update_policy,
)
from rollouts.runs import sum_project_usage
from workers import dispatch

FIELD_HELP = {
    "train": "What remains of a training step: all, every (every k-th step) or sample (of groups).",
    "every": "The k of every k-th step.",
    "groups": "Number of random groups that remain of a step.",
    "extremes": "Number of best and of worst groups that remain too.",
    "seed": "Of the random groups.",
    "after_days": "Younger steps are complete.",
    "raw_after_days": "Raw dumps are dropped after so many days, once verified; null keeps them.",
    "max_age_days": "Older training steps are dropped; null for no limit.",
    "max_steps": "Newest training steps that each run keeps; null for no limit.",
    "max_bytes": "Of bodies and raw dumps, above which the oldest training steps are dropped; null for no limit.",
}
assert set(FIELD_HELP) == set(POLICY_FIELDS)


class Retention(ApiView):
    """What a project keeps."""

    scopes = {"PATCH": "admin", "POST": "admin"}
    statuses = {"POST": ("202",)}
    takes = {
        "PATCH": {**FIELD_HELP, "quota": "Bytes that the project may use, null for no limit. For server admins."},
        "POST": {"apply": "true also starts a pass."},
    }

    def get(self, request: Request, slug: str) -> Response:
        """The policy, when its last pass ended, what was dropped so far, bytes by kind, and the quota."""
        return Response(serialize_retention(permissions.project_or_404(request, slug)))

    def patch(self, request: Request, slug: str) -> Response:
        """Change the policy. Needs the role owner; the quota needs a server admin."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug, role="owner")
        values = {name: value for name, value in data.items() if name in POLICY_FIELDS}
        if "quota" in data:
            if not self.user.is_superuser:
                raise PermissionDenied("Only a server admin can change the quota of a project.")
            set_quota(project, self.user, data["quota"])
        if values:
            update_policy(project, self.user, values)
        return Response(serialize_retention(project))

    def post(self, request: Request, slug: str) -> Response:
        """A dry run: `report` says what the next pass would drop per run and step, and why the rest is kept. Needs the
        role maintainer; `apply` needs the role owner."""
        data = self.parse_body()
        is_applied = data.boolean("apply")
        project = permissions.project_or_404(request, slug, role="owner" if is_applied else "maintainer")
        policy = load_policy(project)
        report = store_report(policy)
        if is_applied and policy.pk:
            start_pass(policy, self.user)
            dispatch.send_now("apply_retention")
        return Response({**serialize_retention(project), "report": report}, status=202 if is_applied else 200)


def serialize_retention(project: Project) -> dict[str, Any]:
    policy, quota = load_policy(project), load_quota_status(project)
    drops = load_project_drops(project).values()
    usage = sum_project_usage([project]).get(project.pk, {})
    with override("en"):
        description = describe_policy(policy)
    return {
        "project": project.slug,
        "policy": serialize_policy(policy),
        "description": description,
        "finished_at": policy.finished_at,
        "dropped": {
            name: sum(getattr(drop, name) for drop in drops) for name in ("samples", "steps", "bytes", "raw_dumps")
        },
        "bytes": {kind: size for kind, size in usage.items() if kind != "runs"},
        "quota": {"bytes": quota.quota, "used": quota.used, "percent": quota.percent} if quota else None,
    }
