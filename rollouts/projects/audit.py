"""The audit log of a project or of the server: who did what, newest first."""

from datetime import date, datetime, time, timedelta

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.utils import timezone

from rollouts.models import AuditEntry, Project, Run


def list_audit_entries(
    project: Project | None, *, user: str = "", verb: str = "", since: date | None = None, until: date | None = None,
    run: Run | None = None,
) -> QuerySet[AuditEntry]:  # fmt: skip
    """Filters by user name, by operation (`run.delete`, or `run` for all on runs), by days (UTC) and by run. Without a
    project: the entries of the server, and those of deleted projects."""
    rows = AuditEntry.objects.filter(project=project).select_related("user").order_by("-at", "-pk")
    if user:
        rows = rows.filter(user__username=user)
    if verb:
        rows = rows.filter(verb=verb) if "." in verb else rows.filter(verb__startswith=f"{verb}.")
    if since:
        rows = rows.filter(at__gte=start_of(since))
    if until and until < date.max:
        rows = rows.filter(at__lt=start_of(until + timedelta(days=1)))
    if run:
        rows = rows.filter(Q(detail__uid=run.uid) | Q(detail__run=run.uid))
    return rows


def start_of(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=timezone.get_current_timezone())


def list_audit_users(project: Project | None) -> list[str]:
    """Returns the names of the users with entries."""
    ids = AuditEntry.objects.filter(project=project).order_by().values("user").distinct()
    return list(User.objects.filter(pk__in=ids).order_by("username").values_list("username", flat=True))


def list_audit_verbs(project: Project | None) -> list[str]:
    """Returns the operations that occur."""
    return sorted(AuditEntry.objects.filter(project=project).order_by().values_list("verb", flat=True).distinct())
