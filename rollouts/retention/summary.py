"""What the retention policy has dropped so far, for pages and the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from rollouts.models import Dump, Project, Run, Step


@dataclass(frozen=True, slots=True)
class DropSummary:
    """`samples` of `total` were dropped in `steps` of all steps with samples. `bytes` are estimated, raw included."""

    samples: int = 0
    total: int = 0
    steps: int = 0
    bytes: int = 0
    raw_dumps: int = 0
    last_at: datetime | None = None


def load_run_drops(run: Run) -> DropSummary:
    return list_run_drops(Step.objects.filter(run=run), Dump.objects.filter(run=run)).get(run.pk, DropSummary())


def load_project_drops(project: Project) -> dict[int, DropSummary]:
    """Returns the summaries by run id."""
    return list_run_drops(Step.objects.filter(run__project=project), Dump.objects.filter(run__project=project))


def list_run_drops(steps: QuerySet[Step], dumps: QuerySet[Dump]) -> dict[int, DropSummary]:
    """Returns the summaries of the runs of which anything was dropped, in two queries."""
    counts = {
        "dropped_samples": Sum("dropped"),
        "all_samples": Sum("samples"),
        "dropped_steps": Count("pk", filter=Q(dropped__gt=0)),
        "freed": Sum("dropped_bytes"),
        "last_at": Max("dropped_at"),
    }
    rows = steps.order_by().values("run").annotate(**counts).values_list("run", *counts)
    raw_counts = {
        "raw_dumps": Count("pk"),
        # Bytes of dumps that lost samples too are in the bytes of their step.
        "freed": Coalesce(Sum("raw_dropped_bytes", filter=Q(samples_dropped_at=None)), 0),
        "last_at": Max("raw_dropped_at"),
    }
    dropped = dumps.filter(raw_dropped_at__isnull=False).order_by().values("run").annotate(**raw_counts)
    raw = {run: row for run, *row in dropped.values_list("run", *raw_counts)}
    result = {}
    for run, samples, total, count, size, last_at in rows:
        raw_dumps, raw_bytes, raw_at = raw.get(run, (0, 0, None))
        if samples or raw_dumps:
            last = max((at for at in (last_at, raw_at) if at), default=None)
            result[run] = DropSummary(samples, total, count, size + raw_bytes, raw_dumps, last)
    return result
