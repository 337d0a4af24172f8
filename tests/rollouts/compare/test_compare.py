from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.db.models import F

from rollouts.compare import compare
from rollouts.compare.pairing import extract_tail_answer
from rollouts.compare.targets import find_config_differences, load_comparison_targets
from rollouts.compare.unpaired import compare_all_samples
from rollouts.errors import InvalidInputError, NotFoundError, TooLargeError
from rollouts.ingest import mark_superseded_steps
from rollouts.models import Project, Run, Step
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

Row = dict[str, Any]


def index_rows(run: Run, step: int, *rows: Row, split: str = "eval") -> None:
    index_file(run, lines(*({"response": "so", **row} for row in rows)), step, split=split)
    run.refresh_from_db()


def build_rows(prompt: str, *scores: float | None, says: str = "", **more: Any) -> list[Row]:
    return [{"prompt": prompt, "response": f"{n} {says}", "score": score, **more} for n, score in enumerate(scores)]


def compare_steps(of: str, split: str = "") -> compare.Comparison:
    return compare.compare_steps(load_comparison_targets(Run.objects.all(), of, split))


def test_prompts_are_counted_by_the_steps_that_solve_them(run: Run) -> None:
    index_rows(
        run,
        1,
        *build_rows("a", 1),
        *build_rows("b", 1),
        *build_rows("c", 0),
        *build_rows("d", 0),
        *build_rows("gone", 1),
    )
    index_rows(run, 2, *build_rows("a", 1), *build_rows("b", 0), *build_rows("c", 1), *build_rows("d", 0))
    result = compare_steps(f"{run.uid}@1,{run.uid}@latest")
    assert result.outcomes == {"AB": 1, "A": 1, "B": 1, "none": 1}
    assert [len(left) for left in result.unpaired_prompts] == [1, 0]
    assert {abs(pair.change) for pair in result.pairs[:2]} == {1.0} and result.pairs[3].change == 0
    assert [row.solved_by for row in result.list_rows("A")] == ["A"] and len(result.list_rows()) == 4
    ((stored, lacking),) = (row.prompts for row in result.list_rows("unpaired"))
    assert stored and stored.correct_count == 1 and lacking is None


def test_a_prompt_counts_as_solved_where_half_of_its_judged_answers_are_right(run: Run) -> None:
    index_rows(run, 1, *build_rows("a", 1, 0, None), *build_rows("b", None))
    index_rows(run, 2, *build_rows("a", 1, 0, 0), *build_rows("b", 1))
    result = compare_steps(f"{run.uid}@1,{run.uid}@2")
    assert result.outcomes == {"A": 1} and result.unevaluated_count == 1
    assert [row.solved_by for row in result.list_rows("unjudged")] == [""]


def test_a_step_that_is_deleted_during_the_comparison_is_an_error(run: Run) -> None:
    for step in (1, 2):
        index_rows(run, step, *build_rows("a", 1))
    targets = load_comparison_targets(Run.objects.all(), f"{run.uid}@1,{run.uid}@2")
    Step.objects.filter(pk=targets[0].step.pk).delete()  # as emptying the trash does
    with pytest.raises(NotFoundError, match="One of these steps was just deleted"):
        compare.compare_steps(targets)


def test_prompts_that_differ_only_in_white_space_are_paired(run: Run, project: Project) -> None:
    other = builders.run(project, "other")
    index_rows(run, 1, *build_rows("2 + 2?", 1))
    index_rows(other, 7, *build_rows(" 2  +\n2? ", 0))
    assert compare_steps("grpo@1,other@7").outcomes == {"A": 1}


def test_prompts_that_changed_their_text_are_paired_by_their_row_of_the_data_set(run: Run) -> None:
    def row(text: str, index: Any, score: float, source: str = "gsm8k") -> Row:
        return build_rows(text, score, data_source=source, dataset_index=index)[0]

    index_rows(
        run, 1, row("Q: a", 1, 1), row("Q: b", 2, 1), row("Q: c", 3, 1), row("Q: c twice", 3, 1), row("same", 9, 1)
    )
    index_rows(run, 2, row("a?", 1, 0), row("b?", 2, 0, "math"), row("c?", 3, 0), row("same", 8, 0))
    result = compare_steps(f"{run.uid}@1,{run.uid}@2")
    assert result.task_pair_count == 1 and len(result.pairs) == 2
    assert [prompt.key for prompt in result.unpaired_prompts[0]] and [
        len(left) for left in result.unpaired_prompts
    ] == [3, 2]


def test_all_prompts_of_a_large_step_are_looked_up_in_the_data_set(run: Run) -> None:
    index_rows(run, 1, *({"prompt": f"Q: {n}", "score": 1, "dataset_index": n} for n in range(2400)))
    index_rows(run, 2, *({"prompt": f"{n}?", "score": 0, "extra_info": {"index": n}} for n in range(60)))
    result = compare_steps(f"{run.uid}@1,{run.uid}@2")
    assert result.task_pair_count == len(result.pairs) == 60


def test_each_data_source_is_measured_and_differences_are_against_the_first_cell(run: Run) -> None:
    easy = [row for n in range(40) for row in build_rows(f"easy {n}", 1, n % 2, data_source="easy")]
    hard = [row for n in range(30) for row in build_rows(f"hard {n}", 0, 0, data_source="hard")]
    index_rows(run, 1, *easy, *hard)
    index_rows(run, 2, *[{**row, "score": 1} for row in easy], *hard)
    full, first, second = compare_steps(f"{run.uid}@1,{run.uid}@2").sources
    assert (full.name, first.name, second.name) == ("", "easy", "hard")
    assert (full.prompts, first.prompts, second.prompts, first.k) == (70, 40, 30, 2)
    before, after = first.statistics["pass@1"]
    assert (before.value, after.value, after.change) == (0.75, 1.0, 0.25)
    assert after.interval and 0.1 < after.interval[0] < 0.25 < after.interval[1] < 0.4 and after.is_significant
    assert [figure.value for figure in first.statistics["pass@k"]] == [1.0, 1.0]
    assert second.statistics["pass@1"][1].change == 0 and not second.statistics["pass@1"][1].is_significant


def test_rounding_to_single_precision_is_no_significant_difference(run: Run) -> None:
    """One trainer saves 1.1, another saves the nearest number of 32 bits."""
    rows = [row for n in range(8) for row in build_rows(f"prompt {n}", 1.1, 0.1)]
    index_rows(run, 1, *rows)
    index_rows(run, 2, *[{**row, "score": float(np.float32(row["score"]))} for row in rows])
    after = compare_steps(f"{run.uid}@1,{run.uid}@2").sources[0].statistics["score"][1]
    assert after.interval and after.interval[0] > 0 and not after.is_significant


def test_the_majority_decides_where_answers_are_known(run: Run) -> None:
    def build_votes(*answers: tuple[str, int]) -> list[Row]:
        return [{"prompt": "a", "response": f"{n} {text}", "score": score} for n, (text, score) in enumerate(answers)]

    index_rows(
        run, 1, *build_votes(("#### 4", 1), ("#### 4", 1), ("#### 5", 0), ("no idea", 0)), *build_rows("b", 1, 0, 0)
    )
    index_rows(run, 2, *build_votes(("#### 4", 1), ("\\boxed{5}", 0), ("#### 5", 0)), *build_rows("b", 1, 0, 0))
    (every,) = compare_steps(f"{run.uid}@1,{run.uid}@2").sources
    assert [figure.value for figure in every.statistics["maj@n"]] == [1.0, 0.0]
    assert [figure.value for figure in every.statistics["pass@1"]] == pytest.approx([5 / 12, 1 / 3])


def test_one_answer_per_prompt_has_neither_a_majority_nor_a_pass_at_k(run: Run) -> None:
    index_rows(run, 1, *build_rows("a", 1, says="#### 4"))
    (every,) = compare_steps(f"{run.uid}@1,{run.uid}@1").sources
    assert every.statistics["maj@n"][0].value is None and every.statistics["pass@k"][0].value is None


@pytest.mark.parametrize(
    ("tail", "answers"),
    [
        ("so #### 1,234.", "1234"),
        ("#### 7 it is, I am sure", "7"),
        ("thus $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("Answer: $12", "12"),
        ("I think 4", ""),
        ("\\boxed{" * 60, ""),
    ],
)
def test_the_answer_is_extracted_from_the_stored_tail(tail: str, answers: str) -> None:
    assert extract_tail_answer(tail) == answers


def test_lengths_are_in_tokens_only_where_every_sample_has_them(run: Run) -> None:
    index_rows(run, 1, *build_rows("a", 1, response_ids=[5, 6, 7]))
    index_rows(run, 2, *build_rows("a", 1, response_ids=[5]))
    index_rows(run, 3, *build_rows("a", 1))
    tokens, chars = compare_steps(f"{run.uid}@1,{run.uid}@2"), compare_steps(f"{run.uid}@1,{run.uid}@3")
    assert (tokens.unit, [figure.value for figure in tokens.sources[0].statistics["length"]]) == ("tokens", [3.0, 1.0])
    assert (chars.unit, [figure.value for figure in chars.sources[0].statistics["length"]]) == ("chars", [2.0, 2.0])


def test_truncation_that_was_not_logged_is_marked_as_inferred(run: Run) -> None:
    index_rows(run, 1, *build_rows("a", 1, finish_reason="length"))
    index_rows(run, 2, *build_rows("a", 1, finish_reason="stop"))
    index_rows(run, 3, *build_rows("a", 1))
    exact = compare_steps(f"{run.uid}@1,{run.uid}@2")
    assert [figure.value for figure in exact.sources[0].statistics["truncated"]] == [
        1.0,
        0.0,
    ] and not exact.truncation_inferred
    assert compare_steps(f"{run.uid}@1,{run.uid}@3").truncation_inferred


def test_more_than_two_cells_are_compared_with_the_first(run: Run) -> None:
    for step, scores in enumerate(((1, 0, 0), (1, 1, 0), (0, 1, 0)), 1):
        index_rows(run, step, *[row for n, score in enumerate(scores) for row in build_rows(f"q{n}", score)])
    result = compare_steps(",".join(f"{run.uid}@{step}" for step in (1, 2, 3)))
    assert result.outcomes == {"AB": 1, "BC": 1, "none": 1}
    assert [figure.change for figure in result.sources[0].statistics["pass@1"]] == pytest.approx([None, 1 / 3, 0])


def test_samples_that_arrive_later_are_in_the_next_comparison(run: Run) -> None:
    index_rows(run, 1, *build_rows("a", 1))
    assert len(compare_steps(f"{run.uid}@1,{run.uid}@1").pairs) == 1
    index_rows(run, 1, *build_rows("a", 1), *build_rows("b", 1))
    assert len(compare_steps(f"{run.uid}@1,{run.uid}@1").pairs) == 2


def test_evaluations_are_compared_where_all_runs_have_them(run: Run, project: Project) -> None:
    other = builders.run(project, "other")
    index_rows(run, 1, *build_rows("a", 1))
    index_rows(run, 1, *build_rows("t", 1), split="train")
    index_rows(other, 4, *build_rows("t", 0), split="train")
    assert [cell.step.split for cell in load_comparison_targets(Run.objects.all(), "grpo,grpo@1")] == ["eval", "eval"]
    mixed = load_comparison_targets(Run.objects.all(), "grpo@latest, other")
    assert [
        (cell.letter, cell.step.split, cell.step.step, f"{cell.run.uid}@{cell.requested_step}") for cell in mixed
    ] == [
        ("A", "train", 1, f"{run.uid}@latest"),
        ("B", "train", 4, f"{other.uid}@latest"),
    ]


def test_attempts_that_run_at_the_same_time_are_one_step(run: Run) -> None:
    for name, score in (("a", 1.0), ("b", 0.0)):
        builders.attempt(run, name)
        rows = [{"prompt": f"{name}{n}", "response": "x", "score": score} for n in range(3)]
        index_file(run, lines(*rows), 5, attempt=name, format="native")
    run.attempts.filter(key__in="ab").update(concurrent_with=run.attempts.get(key="a"))
    mark_superseded_steps(run)
    run.refresh_from_db()
    of = f"{run.uid}@5,{run.uid}@5"
    targets = load_comparison_targets(Run.objects.all(), of)
    assert len(compare_steps(of).pairs) == 6
    result = compare_all_samples(targets)
    assert (result.totals, result.prompts) == ([6, 6], [6, 6])
    score_row = result.get_row("score")
    assert score_row and score_row.all[0].value == 0.5


def test_an_impossible_comparison_is_refused_with_a_clear_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    index_rows(run, 1, *build_rows("a", 1))
    builders.run(builders.project("two"))
    runs = Run.objects.all()
    with pytest.raises(NotFoundError, match="Run 'nobody' not found, or you have no access to it"):
        load_comparison_targets(runs, "nobody@1")
    with pytest.raises(InvalidInputError, match="Several runs are named 'grpo'"):
        load_comparison_targets(runs, "grpo@1")
    with pytest.raises(NotFoundError, match="grpo has no eval step 9"):
        load_comparison_targets(runs, f"{run.uid}@9", "eval")
    Step.objects.update(dropped=F("samples"))
    with pytest.raises(NotFoundError, match="The samples of grpo, eval step 1, were dropped by the retention policy"):
        load_comparison_targets(runs, f"{run.uid}@1", "eval")
    Step.objects.update(dropped=0)
    with pytest.raises(InvalidInputError, match="is not a valid step. Use a step number or latest"):
        load_comparison_targets(runs, f"{run.uid}@first")
    with pytest.raises(InvalidInputError, match="You can compare at most 6 steps at once, not 7"):
        load_comparison_targets(runs, ",".join([run.uid] * 7))
    monkeypatch.setattr(compare, "MAX_SAMPLES", 1)
    with pytest.raises(TooLargeError, match="These steps have 2 samples. You can compare at most 1 at once"):
        compare_steps(f"{run.uid}@1,{run.uid}@1")


def test_a_prompt_with_different_ground_truths_shows_all_of_them(run: Run) -> None:
    index_rows(run, 1, *build_rows("a", 1, ground_truth="4"))
    index_rows(run, 2, *build_rows("a", 0, ground_truth="5"))
    assert [row.ground_truths for row in compare_steps(f"{run.uid}@1,{run.uid}@2").list_rows()] == [["4", "5"]]


def test_the_differences_of_the_configs_are_listed(run: Run, project: Project) -> None:
    run.config = {"actor": {"lr": 1e-6, "same": [1]}, "seed": 1, "only": {}}
    run.save()
    other = builders.run(project, "other", config={"actor": {"lr": 3e-6, "same": [1]}, "seed": 1})
    for item in (run, other):
        index_rows(item, 1, *build_rows("a", 1))
    assert find_config_differences(load_comparison_targets(Run.objects.all(), "grpo,other")) == [
        ("actor.lr", ["1e-06", "3e-06"]),
        ("only", ["{}", ""]),
    ]


def test_equal_values_of_configs_that_are_written_differently_are_no_difference(run: Run, project: Project) -> None:
    run.config = {"lr": 1e-6, "bf16": True, "count": 1}
    run.save()
    other = builders.run(project, "other", config={"lr": "0.000001", "bf16": "true", "count": True})
    for item in (run, other):
        index_rows(item, 1, *build_rows("a", 1))
    targets = load_comparison_targets(Run.objects.all(), "grpo,other")
    assert find_config_differences(targets) == [("count", ["1", "true"])]
