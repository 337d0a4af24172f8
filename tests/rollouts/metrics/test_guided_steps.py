"""Guidance counts of a step."""

from __future__ import annotations

import pytest

from rollouts.metrics import append_points, compact_metric_rows
from rollouts.models import Run, Step
from rollouts.samples import MetricPoint
from tests.rollouts.support.push import index_file, line
from tests.support import builders

pytestmark = pytest.mark.django_db

COUNTS = {"samples": 3.0, "tokens": 40.0, "rule/short": 3.0, "rule/other": 0.0}


@pytest.mark.parametrize("is_compacted", [False, True])
def test_guidance_counts_that_arrived_before_the_samples_are_found(run: Run, is_compacted: bool) -> None:
    values = {f"guidance/{name}": value for name, value in COUNTS.items()}
    points = [MetricPoint(step, {"guidance/version": version, **values}) for step, version in ((3, 2.0), (4, 5.0))]
    append_points(run, builders.attempt(run), points)
    if is_compacted:
        compact_metric_rows(run.pk, min_rows=1)
    for step in (3, 4, 5):
        index_file(run, line({"prompt": "2+2?", "response": "4"}), step)
    guidance = dict(Step.objects.values_list("step", "guidance"))
    counts = {"samples": 3, "tokens": 40, "rules": {"short": 3}}
    assert guidance == {3: {"version": 2, **counts}, 4: {"version": 5, **counts}, 5: None}
