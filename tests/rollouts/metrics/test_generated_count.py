"""The number of samples that a trainer generated in a step."""

from __future__ import annotations

import pytest

from rollouts.metrics import compact_metric_rows, series
from rollouts.models import Run, Step
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import index_file, line
from tests.support import builders

pytestmark = pytest.mark.django_db


def log_count(run: Run, step: int, count: float | None) -> None:
    series.append_points(
        run, builders.attempt(run), [MetricPoint(step, {series.GENERATED_COUNT_METRIC: count, "loss": 0.5})]
    )


def index_samples(run: Run, step: int, split: str = "train") -> Step:
    index_file(run, line({"prompt": "2+2?", "response": "4"}), step, split=split)
    return Step.objects.get(run=run, step=step, split=split)


@pytest.mark.parametrize("first", ["metric", "samples"])
def test_a_step_has_the_generated_count_in_any_order_of_arrival(run: Run, first: str) -> None:
    if first == "metric":
        log_count(run, 3, 11_264)
        step = index_samples(run, 3)
    else:
        step = index_samples(run, 3)
        log_count(run, 3, 11_264)
        step.refresh_from_db()
    assert (step.samples, step.generated) == (1, 11_264)


def test_the_generated_count_is_kept_when_another_dump_arrives(run: Run) -> None:
    log_count(run, 3, 8)
    index_samples(run, 3)
    run.metric_rows.all().delete()  # they are compacted into blocks
    assert index_samples(run, 3).generated == 8


def test_a_count_that_was_compacted_before_the_samples_arrived_is_found(run: Run) -> None:
    for step in (1, 2, 4):
        log_count(run, step, 8 * step)
    assert compact_metric_rows(run.pk, min_rows=1) == 3
    assert [index_samples(run, step).generated for step in (1, 2, 3, 4, 5)] == [8, 16, None, 32, None]


def test_the_count_is_unknown_if_the_trainer_logs_none_and_for_an_evaluation(run: Run) -> None:
    log_count(run, 3, None)
    log_count(run, 4, 8)
    assert index_samples(run, 3).generated is None
    assert index_samples(run, 4, "eval").generated is None
