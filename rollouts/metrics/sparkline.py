"""The training score of runs in a few points, for a small chart beside their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from django.db.models import Avg, BigIntegerField, Case, F, Max, Value, When

from rolloutdeck.protocol import STEP_KINDS
from rollouts.models import Run, Step

MAX_SPARKLINE_POINTS = 32


def load_sparklines(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Returns the mean training score over the current steps, as at most MAX_SPARKLINE_POINTS averages of equal width,
    by run uid. Where some steps count updates and others prompts, only those that count updates are used.

    Makes two queries for any number of runs.
    """
    uids = {run.pk: run.uid for run in runs}
    steps = Step.objects.current().filter(run__in=list(uids), split="train", score_mean__isnull=False).order_by()
    ends: dict[int, tuple[str, int]] = {}
    for run, kind, end in steps.values_list("run", "step_kind").annotate(Max("step")):
        ends[run] = min(ends.get(run, (kind, end)), (kind, end), key=lambda one: STEP_KINDS.index(one[0]))
    widths = [
        When(run=run, step_kind=kind, then=Value(max(1, -(-(end + 1) // MAX_SPARKLINE_POINTS))))
        for run, (kind, end) in ends.items()
    ]
    found: dict[str, list[float]] = defaultdict(list)
    if widths:
        bucket = F("step") / Case(*widths, output_field=BigIntegerField())
        shown = steps.annotate(bucket=bucket).exclude(bucket=None)
        rows = shown.values("run", "bucket").annotate(mean=Avg("score_mean"))
        for run, mean in rows.order_by("run", "bucket").values_list("run", "mean"):
            found[uids[run]].append(mean)
    return {uid: found.get(uid, []) for uid in uids.values()}
