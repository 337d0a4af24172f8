"""The bytes that a project may use. Above the quota, uploads are refused and clients keep their files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.db.models import F, Q, Sum

from rollouts.errors import QuotaExceededError
from rollouts.models import Dump, Project, RunDiskUsage
from rollouts.runs import sum_project_usage

WARNING_PERCENT: Final = 80
URGENT_PERCENT: Final = 95


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """What a project uses of its quota, in bytes."""

    project: Project
    used: int
    quota: int

    @property
    def percent(self) -> int:
        return 100 * self.used // self.quota

    @property
    def level(self) -> str:
        """`full`, `urgent`, `warning` or empty."""
        if self.used >= self.quota:
            return "full"
        return "urgent" if self.percent >= URGENT_PERCENT else "warning" if self.percent >= WARNING_PERCENT else ""

    @property
    def message(self) -> str:
        """For clients, so in English."""
        used, quota = format_gigabytes(self.used), format_gigabytes(self.quota)
        return f"Project {self.project.slug} uses {used} of its quota of {quota} ({self.percent} %)."


def format_gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def load_quota_status(project: Project) -> QuotaStatus | None:
    """Returns None if the project has no quota."""
    return next(iter(list_quota_statuses([project])), None)


def list_quota_statuses(projects: Iterable[Project]) -> list[QuotaStatus]:
    """Counts the sizes that a worker measured, runs in the trash included, and the plain bytes of dumps that arrived
    since."""
    limited = [project for project in projects if project.quota]
    usage = sum_project_usage(limited) if limited else {}
    statuses = []
    for project in limited:
        sizes = usage.get(project.pk, {})
        used = sum(sizes.get(kind, 0) for kind in RunDiskUsage.KINDS) + sum_new_dumps(project)
        statuses.append(QuotaStatus(project, used, project.quota or 0))
    return statuses


def sum_new_dumps(project: Project) -> int:
    since = Q(run__disk_usage=None) | Q(received_at__gt=F("run__disk_usage__measured_at"))
    dumps = Dump.objects.filter(since, run__project=project).exclude(source__startswith=Dump.ARTIFACT_PREFIX)
    return int(dumps.aggregate(total=Sum("bytes"))["total"] or 0)


def check_quota(project: Project, size: int) -> str:
    """Returns a warning for the client if the project has used most of its quota, else "". Raises QuotaExceededError if
    an upload of `size` bytes is over it."""
    status = load_quota_status(project)
    if status is None:
        return ""
    if status.used + size > status.quota:
        message = (
            f"{status.message} An upload of {format_gigabytes(size)} is over it. Delete runs, set a retention policy, "
            "or ask an administrator for a larger quota. The client keeps the file and sends it later."
        )
        raise QuotaExceededError(message)
    return status.message if status.level else ""
