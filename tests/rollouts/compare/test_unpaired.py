"""All samples of steps whose prompts differ: means, intervals, mixes of sources, distributions, and a bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollouts.compare import OTHER_SOURCES, SAME_MIX, UnpairedComparison, compare_all_samples, sides
from rollouts.compare.distributions import choose_bins, select_bin
from rollouts.compare.targets import load_comparison_targets
from rollouts.models import Project, Run, Sample
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

Row = dict[str, Any]


def build_step(run: Run, step: int, means: dict[str, list[float]], *, extra: Any = None) -> None:
    """For each source its prompts' mean scores: a prompt has two samples, 0.1 below and above its mean."""
    rows: list[Row] = []
    for source, scores in means.items():
        for number, mean in enumerate(scores):
            for sign in (-1, 1):
                row = {"prompt": f"{step} {source} {number}", "response": "so" * (number + 1), "data_source": source}
                rows.append({**row, "score": round(mean + sign * 0.1, 3), **(extra(mean, sign) if extra else {})})
    index_file(run, lines(*rows), step)
    run.refresh_from_db()


def compare_steps(run: Run, *steps: int) -> UnpairedComparison:
    of = ",".join(f"{run.uid}@{step}" for step in steps)
    return compare_all_samples(load_comparison_targets(Run.objects.all(), of, "train"))


def get_row(result: UnpairedComparison, name: str) -> Any:
    row = result.get_row(name)
    assert row
    return row


def test_the_mix_of_sources_is_separated_from_the_change(run: Run) -> None:
    """Each source gains 0.2, but the easy one shrinks: over all samples the gain disappears."""
    build_step(run, 1, {"easy": [0.7] * 30, "hard": [0.1] * 10})
    build_step(run, 2, {"easy": [0.9] * 10, "hard": [0.3] * 30})
    result = compare_steps(run, 1, 2)
    score = get_row(result, "score")
    assert score.all[1].change == pytest.approx(-0.1) and score.mix[1].change == pytest.approx(0.2)
    assert score.mix[1].value == pytest.approx(0.75 * 0.9 + 0.25 * 0.3)
    assert [source.name for source in result.sources] == ["easy", "hard"]
    assert [source.shares for source in result.sources] == [[0.75, 0.25], [0.25, 0.75]]
    assert [source.scores[1].change for source in result.sources] == [pytest.approx(0.2)] * 2


def test_intervals_keep_the_samples_of_a_prompt_together(project: Project) -> None:
    """The same scores in twice as many prompts: alone, the samples of a prompt would count as independent."""
    together, apart = builders.run(project, "together"), builders.run(project, "apart")
    generator = np.random.default_rng(1)
    for step in (1, 2):
        values = generator.normal(0.5, 0.3, 40)
        for run, size in ((together, 8), (apart, 1)):
            rows = [
                {"prompt": f"{step} {n} {k // size}", "response": f"{k}", "score": float(value)}
                for n, value in enumerate(values)
                for k in range(8)
            ]
            index_file(run, lines(*rows), step)
            run.refresh_from_db()
    widths = []
    for run in (together, apart):
        low, high = get_row(compare_steps(run, 1, 2), "score").all[1].interval
        widths.append(high - low)
    assert 2 < widths[0] / widths[1] < 4  # the square root of 8


def test_sides_are_resampled_independently(run: Run) -> None:
    """Equal sides differ by chance; with the same draws on both sides the interval would be empty."""
    for step in (1, 2):
        build_step(run, step, {"a": [0.1 * n for n in range(10)]})
    low, high = get_row(compare_steps(run, 1, 2), "score").all[1].interval
    assert low < -0.1 < 0.1 < high


def test_small_sources_are_weighted_together_and_named(run: Run) -> None:
    build_step(run, 1, {"big": [0.5] * 20, "rare": [0.1] * 4, "gone": [0.9] * 3})
    build_step(run, 2, {"big": [0.5] * 20, "rare": [0.3] * 12})
    result = compare_steps(run, 1, 2)
    assert [source.name for source in result.sources] == ["big", OTHER_SOURCES]
    assert result.small_sources == ["gone", "rare"] and result.left_out == []
    build_step(run, 3, {"big": [0.5] * 20})
    lacking = compare_steps(run, 1, 3)
    assert lacking.left_out == [OTHER_SOURCES]
    mix = get_row(lacking, "score").mix
    assert mix[0].value == pytest.approx(0.5) and mix[1].value == pytest.approx(0.5)


def test_one_source_has_no_mix(run: Run) -> None:
    for step in (1, 2):
        build_step(run, step, {"only": [0.5] * 12})
    result = compare_steps(run, 1, 2)
    assert not result.has_mix and get_row(result, "score").mix is None and not result.sources


def test_reward_parts_marks_and_groups_are_measured_of_all_samples(run: Run) -> None:
    def extra(mean: float, sign: int) -> Row:
        rewards = {"acc": float(sign > 0)} | ({"format": 0.5} if mean > 0.6 else {})
        return {"rewards": rewards, "acc": sign > 0, "finish_reason": "length" if sign > 0 else "stop"}

    build_step(run, 1, {"a": [0.5] * 12}, extra=extra)
    build_step(run, 2, {"a": [0.7] * 12}, extra=extra)
    result = compare_steps(run, 1, 2)
    assert [mean.value for mean in get_row(result, "part: acc").all] == [0.5, 0.5]
    assert [mean.value for mean in get_row(result, "part: format").all] == [None, 0.5]
    assert [mean.value for mean in get_row(result, "pass@1").all] == [0.5, 0.5]
    assert [mean.value for mean in get_row(result, "pass@2").all] == [1.0, 1.0]
    assert [mean.value for mean in get_row(result, "truncated").all] == [0.5, 0.5]
    assert [mean.value for mean in get_row(result, "zero-variance").all] == [0.0, 0.0]
    assert get_row(result, "mark: duplicate").all[0].value == 1.0
    assert result.get_row("mark: empty") is None


def test_distributions_of_all_sides_have_the_same_bins_and_count_every_sample(run: Run) -> None:
    build_step(run, 1, {"a": [0.1 * n for n in range(10)], "b": [0.5] * 10})
    build_step(run, 2, {"a": [0.1 * n for n in range(2, 12)], "b": [0.7] * 30})
    build_step(run, 3, {"a": [0.5] * 10, "b": [0.5] * 10})
    result = compare_steps(run, 1, 2, 3)
    score, length = result.charts["all"]
    assert [sum(counts) for counts in score.counts] == [40, 80, 40] == [sum(counts) for counts in length.counts]
    assert all(sum(shares) == pytest.approx(1) for shares in score.shares + result.charts[SAME_MIX][0].shares)
    assert {chart.name for chart in result.breakdowns["all"]["source"]} == {"a", "b"}
    counts_by_source = [
        sum(map(sum, (chart.counts[at] for chart in result.breakdowns["all"]["source"]))) for at in range(3)
    ]
    assert counts_by_source == [40, 80, 40]


def test_bins_end_at_round_numbers_and_an_outlier_does_not_flatten_them() -> None:
    values = np.array([*range(1000), 1_000_000], np.float64)
    bins = choose_bins([values], is_length=True)
    assert bins[-1].high is None and bins[-2].high is not None and bins[-2].high <= 1200
    assert [place.low for place in choose_bins([np.array([0.0, 1.0, np.nan])])] == [0.0, 1.0]
    assert choose_bins([np.array([np.nan])]) == []
    single = np.array([0.1, 1.1], np.float32).astype(np.float64)
    merged = choose_bins([np.array([0.1, 1.1]), single])
    assert [place.low for place in merged] == [0.1, 1.1] and select_bin(single, merged[1]).tolist() == [False, True]
    narrow = choose_bins([np.linspace(0.3, 0.30001, 50)])
    assert narrow[0].low is not None and narrow[0].low <= 0.3 and len(narrow) <= 14
    tenths = np.array([n / 10 for n in range(10)], np.float32).astype(np.float64)
    assert [select_bin(tenths, place).sum() for place in choose_bins([tenths])] == [1] * 10
    for count in (7, 28):
        lows = [place.low for place in choose_bins([np.arange(10.0, 10.0 + count)], is_length=True)]
        assert len(lows) > 5 and all(low is not None and low.is_integer() for low in lows), lows


def test_a_step_of_many_samples_is_represented_by_complete_prompts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    build_step(run, 1, {"a": [0.5] * 400})
    build_step(run, 2, {"a": [0.5] * 10})
    monkeypatch.setattr(sides, "MAX_SIDE_SAMPLES", 200)
    result = compare_steps(run, 1, 2)
    assert result.totals == [800, 20] and result.counted[1] == 20
    assert 100 < result.counted[0] < 300 and result.counted[0] == 2 * result.prompts[0]


def test_a_step_of_many_samples_of_one_prompt_is_represented_by_a_part_of_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        rows = [generation("the only prompt", f"answer {number} of {step}", 0.5) for number in range(400)]
        index_file(run, lines(*rows), step)
    monkeypatch.setattr(sides, "MAX_SIDE_SAMPLES", 200)
    result = compare_steps(run, 1, 2)
    assert result.totals == [400, 400] and all(100 < count < 300 for count in result.counted)


def test_a_step_without_scores_or_texts_is_compared_by_what_it_has(run: Run) -> None:
    for step in (1, 2):
        rows = [{"prompt": f"{step} {n}", "response": "so", "data_source": "ab"[n % 2]} for n in range(24)]
        index_file(run, lines(*rows), step)
    run.refresh_from_db()
    result = compare_steps(run, 1, 2)
    assert [[mean.value for mean in source.scores] for source in result.sources] == [[None, None]] * 2
    assert result.get_row("score") is None and get_row(result, "length").all[0].value == 2
    assert [chart.name for chart in result.charts["all"]] == ["length"]


def test_without_a_body_file_scores_are_still_compared(run: Run) -> None:
    for step in (1, 2):
        build_step(run, step, {"a": [0.5] * 3}, extra=lambda mean, sign: {"rewards": {"acc": 1.0}})
    Sample.objects.first().dump.segment.delete()
    result = compare_steps(run, 1, 2)
    assert get_row(result, "score").all[1].value == pytest.approx(0.5)
