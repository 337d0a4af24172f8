"""Statistics of the samples of a step."""

from __future__ import annotations

import numpy as np
import pytest

from rollouts.indexing.step_stats import build_histogram, recompute_step_stats
from rollouts.models import Project, Sample, Step
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


def count_bins(*scores: float) -> list[int]:
    counts: list[int] = build_histogram(np.array(scores))["counts"]
    return counts


def test_usual_rewards_are_counted_in_five_fixed_bins() -> None:
    assert count_bins(-1, -0.1, 0, 0, 0.25, 0.5, 0.99, 1) == [2, 2, 1, 2, 1]
    assert len(build_histogram(np.array([0.5]))["labels"]) == 5


def test_other_scores_are_counted_in_ten_equal_bins() -> None:
    result = build_histogram(np.array([0.0, 5.0, 10.0]))
    assert result["counts"] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert (result["edges"][0], result["edges"][-1], len(result["labels"])) == (0.0, 10.0, 10)
    assert count_bins(7, 7) == [2]


def test_scores_that_differ_by_rounding_only_are_in_one_bin() -> None:
    assert (
        count_bins(1.0 + 0.2, 1.1 + 0.1)
        == count_bins(2.0, 1.9999999999999998)
        == count_bins(-3.0, -3.0000000000000004)
        == [2]
    )
    assert sum(count_bins(2.0, 2.0 + 17 * 2**-51)) == 2


@pytest.mark.django_db
def test_hidden_samples_are_not_counted(project: Project) -> None:
    index_file(builders.run(project), lines(generation("a", "1", 1.0), generation("a", "2", 0.0)))
    step = Step.objects.get()
    Sample.objects.filter(tail="2").update(visible=False)
    recompute_step_stats(step)
    assert (step.samples, step.score_mean, step.version) == (1, 1.0, 2)


@pytest.mark.django_db
def test_a_step_without_scores_has_no_score_statistics(project: Project) -> None:
    index_file(builders.run(project), lines({"prompt": "a", "response": "1"}))
    step = Step.objects.get()
    assert (step.score_mean, step.histogram, step.samples, step.groups) == (None, {}, 1, 1)
    assert "judged" not in step.facets


@pytest.mark.django_db
def test_truncation_is_counted_where_it_is_recorded_and_by_source(project: Project) -> None:
    rows = [{"prompt": "a", "response": str(i), "score": i, "finish_reason": reason, "data_source": source}
            for i, (reason, source) in enumerate([("length", "x"), ("stop", "x"), ("stop", "y")])]  # fmt: skip
    index_file(builders.run(project), lines(*rows))
    step = Step.objects.get()
    assert step.truncated == 1
    assert step.by_source == {"x": {"count": 2, "score_mean": 0.5}, "y": {"count": 1, "score_mean": 2.0}}
