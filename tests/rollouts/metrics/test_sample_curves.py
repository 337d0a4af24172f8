"""Curves that are computed from the statistics of steps and loaded like any metric."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.metrics import series
from rollouts.models import Run
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db


def index_step(run: Run, number: int, accs: list[int], texts: list[str] | None = None, **header: Any) -> None:
    """Indexes a step of groups of two samples with the given accuracies."""
    responses = texts or [f"response {n}" for n in range(len(accs))]
    rows = [
        {"prompt": f"q{n // 2}", "group": f"g{n // 2}", "response": text, "acc": acc, "score": acc / 2}
        for n, (acc, text) in enumerate(zip(accs, responses, strict=True))
    ]
    index_file(run, lines(*rows), step=number, **{"source": f"{header}{number}", "format": "native", **header})
    run.refresh_from_db()


def load_curve(run: Run, name: str, **options: Any) -> list[tuple[int, float | None]]:
    curves = series.load_curves(run, [name], **options)[run.uid][name]
    return [pair for item in curves for pair in zip(item["steps"], item["values"], strict=True)]


def test_shares_of_samples_and_of_groups_are_curves(run: Run) -> None:
    index_step(run, 1, [0, 0, 0, 1])
    index_step(run, 2, [1, 1, 0, 1], ["W" * 200, "ok", " ", "fine"])
    assert load_curve(run, "samples/correct") == [(1, 0.25), (2, 0.75)]
    assert load_curve(run, "samples/solve-none") == [(1, 0.5), (2, 0.0)]
    assert load_curve(run, "samples/solve-all") == [(1, 0.0), (2, 0.5)]
    assert load_curve(run, "samples/zerovar") == [(1, 0.5), (2, 0.5)]
    assert load_curve(run, "samples/repetition") == load_curve(run, "samples/empty") == [(1, 0.0), (2, 0.25)]
    assert load_curve(run, "samples/score/mean") == [(1, 0.125), (2, 0.375)]


def test_properties_that_are_not_recorded_or_never_occur_have_no_curve(run: Run) -> None:
    index_step(run, 1, [0, 1])
    assert series.list_metric_names(run) == [
        f"samples/{name}"
        for name in (
            *("correct", "length/mean", "score/mean", "score/p10", "score/p50", "score/p90"),
            *("solve-all", "solve-none", "zerovar"),
        )
    ]
    assert load_curve(run, "samples/truncated") == load_curve(run, "samples/nonsense") == []


def test_a_run_without_scores_has_curves_of_its_texts_only(run: Run) -> None:
    index_file(run, lines({"prompt": "a", "response": "W" * 200, "truncated": True}), format="native")
    run.refresh_from_db()
    assert series.list_metric_names(run) == ["samples/length/mean", "samples/repetition", "samples/truncated"]


def test_an_evaluation_has_its_own_curves(run: Run) -> None:
    index_step(run, 1, [0, 1])
    index_step(run, 1, [1, 1], split="eval")
    assert load_curve(run, "samples/correct") == [(1, 0.5)]
    assert load_curve(run, "samples/eval/correct") == [(1, 1.0)]


def test_a_later_attempt_replaces_repeated_steps_of_a_curve(run: Run) -> None:
    for number in (1, 2, 3):
        index_step(run, number, [0, 0], attempt="a")
    for number in (2, 3):
        index_step(run, number, [1, 1], attempt="b")
    assert load_curve(run, "samples/correct") == [(1, 0.0), (2, 1.0), (3, 1.0)]
    assert len(load_curve(run, "samples/correct", attempt="all")) == 5
    assert load_curve(run, "samples/correct", attempt="a") == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert series.list_metric_names(run, "b") == series.list_metric_names(run, "a")


def test_sample_curves_are_listed_with_logged_metrics_and_have_a_last_value(run: Run) -> None:
    series.append_points(run, builders.attempt(run), [MetricPoint(1, {"critic/score/mean": 0.5})])
    index_step(run, 1, [0, 1])
    index_step(run, 2, [1, 1])
    requests = ["critic/score/mean", "samples/correct"]
    assert set(requests) <= set(series.list_metric_names(run))
    assert series.load_last_values(run, requests)[run.uid] == {"critic/score/mean": 0.5, "samples/correct": 1.0}


def test_the_last_value_is_that_of_the_trainer_step_and_not_of_a_prompt_index(run: Run) -> None:
    index_step(run, 2, [1, 1])
    index_step(run, 400, [0, 0], step_kind="feed_index")
    assert series.load_last_values(run, ["samples/correct"])[run.uid] == {"samples/correct": 1.0}


def test_a_curve_of_a_long_run_is_downsampled(run: Run) -> None:
    for number in range(1, 41):
        index_step(run, number, [0, number % 2])
    assert len(load_curve(run, "samples/correct", max_points=16)) <= 16


def test_staleness_is_a_curve_of_the_samples_that_record_it(run: Run) -> None:
    rows = [{"prompt": "q", "response": f"r{n}", "policy_version": 9 - n, "trainer_version": 9} for n in range(3)]
    index_file(run, lines(*rows, {"prompt": "q", "response": "unknown"}), step=1, format="native")
    index_file(run, lines({"prompt": "q", "response": "x"}), step=2, source="2", format="native")
    run.refresh_from_db()
    assert load_curve(run, "samples/staleness/mean") == [(1, 1.0)]
    assert load_curve(run, "samples/staleness/max") == [(1, 2.0)]


def index_step_with_parts(run: Run, number: int, *samples: tuple[float, dict[str, Any]], **header: Any) -> None:
    rows = [
        {"prompt": f"q{n}", "group": f"g{n}", "response": f"{number} {n}", "score": score, "rewards": parts}
        for n, (score, parts) in enumerate(samples)
    ]
    index_file(run, lines(*rows), step=number, source=f"{header}{number}", format="native", **header)
    run.refresh_from_db()


def test_the_means_of_reward_parts_are_curves_of_each_split(run: Run) -> None:
    index_step_with_parts(
        run, 1, (1.5, {"acc": 1.0, "format": 0.5}), (0.0, {"acc": 0.0, "format": 0.0, "brevity": None})
    )
    index_step_with_parts(
        run, 2, (1.25, {"acc": 1.0, "format": 0.25}), (1.5, {"acc": 1.0, "format": 0.5, "brevity": -0.5})
    )
    index_step_with_parts(run, 2, (0.5, {"acc": 0.25, "format": 0.25}), split="eval")
    assert load_curve(run, "samples/parts/acc") == [(1, 0.5), (2, 1.0)]
    assert load_curve(run, "samples/parts/format") == [(1, 0.25), (2, 0.375)]
    assert load_curve(run, "samples/parts/brevity") == [(2, -0.5)]  # only of the samples that have it
    assert load_curve(run, "samples/eval/parts/acc") == [(2, 0.25)]


def test_a_part_that_always_equals_the_score_is_no_part_of_it(run: Run) -> None:
    index_step_with_parts(run, 1, (1.0, {"score": 1.0, "format": 0.0}), (0.0, {"score": 0.0, "format": 0.0}))
    index_step_with_parts(run, 2, (1.0, {"score": 1.0, "format": 1.0, "huge": 1e300}))
    assert [name for name in series.list_metric_names(run) if "parts" in name] == ["samples/parts/format"]


def test_the_parts_of_a_trajectory_are_those_of_its_last_sample(run: Run) -> None:
    turns = [
        {
            "prompt": "q",
            "response": f"turn {turn}",
            "score": 1.0,
            "trajectory": "t",
            "turn": turn,
            "rewards": {"acc": turn},
        }
        for turn in (0, 1, 2)
    ]
    index_file(run, lines(*turns), step=1, format="native")
    run.refresh_from_db()
    assert load_curve(run, "samples/parts/acc") == [(1, 2.0)]
