"""The share of each step's responses that follow a template, over the steps of a run."""

from collections import defaultdict
from collections.abc import Collection

from django.db.models import BigIntegerField, F, Max, Sum, Value
from django.db.models.functions import Cast

from rollouts.models import Step, StepTemplate

MAX_POINTS = 32


def load_template_shares(step: Step, keys: Collection[int]) -> dict[int, list[float]]:
    """Returns the shares by key, at most `MAX_POINTS` for the current steps of the run and split of `step`, each of
    several steps if there are more. Makes three queries for any number of steps."""
    steps = Step.objects.current().filter(run=step.run_id, split=step.split, step_kind=step.step_kind, samples__gt=0)
    last = steps.aggregate(last=Max("step"))["last"] or 0
    width = Value(max(1, -(-(last + 1) // MAX_POINTS)))
    bucket = Cast(F("step") / width, BigIntegerField())
    totals = dict(steps.order_by().annotate(bucket=bucket).values_list("bucket").annotate(Sum("samples")))
    rows = StepTemplate.objects.filter(step__in=steps.values("pk"), key__in=keys).order_by()
    counts: dict[int, dict[int, int]] = defaultdict(dict)
    in_bucket = rows.annotate(bucket=Cast(F("step__step") / width, BigIntegerField())).values_list("key", "bucket")
    for key, at, count in in_bucket.annotate(Sum("samples")):
        counts[key][at] = count
    return {key: [counts[key].get(at, 0) / totals[at] for at in sorted(totals)] for key in keys}
