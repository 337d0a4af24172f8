"""Measures the disk use of runs. A worker calls it: pages only read what it stored."""

from datetime import timedelta

from django.db.models import F, Q, Sum
from django.utils import timezone

from rollouts.models import Blob, Block, Dump, MetricRow, Run, RunDiskUsage, Sample
from rollouts.storage import measure_images, measure_raw_dumps

MAX_RUNS_PER_SWEEP = 5
MIN_AGE = timedelta(minutes=5)  # of a measurement, before a run that changes is measured again
BYTES_PER_POINT = 16
BYTES_PER_SAMPLE = 700  # of an index row with its indexes
BYTES_PER_METRIC_ROW = 2000  # of points that are not compacted yet


def measure_due_runs() -> int:
    """Measures runs that changed since the last measurement, at most a few. Returns their number."""
    changed = Q(disk_usage=None) | (
        ~Q(version=F("disk_usage__version")) & Q(disk_usage__measured_at__lte=timezone.now() - MIN_AGE)
    )
    due = list(
        Run.objects.filter(changed).order_by(F("disk_usage__measured_at").asc(nulls_first=True))[:MAX_RUNS_PER_SWEEP]
    )
    for run in due:
        measure_run(run)
    return len(due)


def measure_run(run: Run) -> RunDiskUsage:
    """Measures one run and stores the result."""
    samples = Sample.objects.filter(step__run=run).count()
    rows = MetricRow.objects.filter(run=run).count()
    points = Block.objects.filter(series__run=run).aggregate(total=Sum("count"))["total"] or 0
    blobs = Blob.objects.filter(pk__in=Blob.objects.filter(artifacts__run=run).values("pk"))
    values = {
        "raw": measure_raw_bytes(run),
        "bodies": run.segments.aggregate(total=Sum("bytes"))["total"] or 0,
        "artifacts": blobs.aggregate(total=Sum("bytes"))["total"] or 0,
        "images": measure_images(run.image_owner),
        "metrics": points * BYTES_PER_POINT + rows * BYTES_PER_METRIC_ROW,
        "index": samples * BYTES_PER_SAMPLE,
        "version": run.version,
        "measured_at": timezone.now(),
    }
    return RunDiskUsage.objects.update_or_create(run=run, defaults=values)[0]


def measure_raw_bytes(run: Run) -> int:
    """Returns the compressed bytes of the run's dumps. Equal bytes are stored once, those of artifacts not here."""
    hashes = Dump.objects.filter(run=run).order_by().values_list("sha256", flat=True).distinct()
    return sum(measure_raw_dumps(run.project_id, hashes.iterator(chunk_size=5000)).values())
