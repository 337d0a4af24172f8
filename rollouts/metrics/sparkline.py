"""The training score of runs in a few points, for a small chart beside their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from django.db.models import Avg, BigIntegerField, Case, F, Max, Value, When

from rolloutdeck.protocol import STEP_KINDS
from rollouts.models import Run, Step

SPARKS = 32


def load_sparklines(runs: Sequence[Run], *, points: int = SPARKS) -> dict[str, list[float]]:
    """Mean training score over the current steps, as at most `points` averages of equal width, by run uid. Where some
    count updates and others prompts, the updates.

    Two queries for any number of runs.
    """
    uids = {run.pk: run.uid for run in runs}
    steps = Step.objects.current().filter(run__in=list(uids), split="train", score_mean__isnull=False).order_by()
    ends: dict[int, tuple[str, int]] = {}
    for run, kind, end in steps.values_list("run", "step_kind").annotate(Max("step")):
        ends[run] = min(ends.get(run, (kind, end)), (kind, end), key=lambda one: STEP_KINDS.index(one[0]))
    widths = [
        When(run=run, step_kind=kind, then=Value(max(1, -(-(end + 1) // points)))) for run, (kind, end) in ends.items()
    ]
    found: dict[str, list[float]] = defaultdict(list)
    if widths:
        bucket = F("step") / Case(*widths, output_field=BigIntegerField())
        shown = steps.annotate(bucket=bucket).exclude(bucket=None)
        rows = shown.values("run", "bucket").annotate(mean=Avg("score_mean"))
        for run, mean in rows.order_by("run", "bucket").values_list("run", "mean"):
            found[uids[run]].append(mean)
    return {uid: found.get(uid, []) for uid in uids.values()}
