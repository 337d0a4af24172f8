"""The history of a prompt over steps, attempts and runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rollouts.models import Project, Run, Sample
from rollouts.prompts import heatmap, history
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db


def index_responses(run: Run, step: int, accs: list[int | None], **header: Any) -> None:
    """Indexes answers to the prompt at a step; `accs` are their accuracies."""
    rows = [
        {"prompt": "2+2?", "response": f"{step} {n} {header}", "group": "g", "score": acc}
        | ({} if acc is None else {"acc": acc})
        for n, acc in enumerate(accs)
    ]
    index_file(run, lines(*rows), step=step, **{"source": f"{header}{step}", "format": "native", **header})


def load_history(run: Run, split: str = "train") -> history.PromptHistory:
    return history.load_prompt_history(run, Sample.objects.all()[0].prompt_key, split)


def load_run_history(run: Run) -> history.PromptRunHistory:
    result = history.find_run_history(load_history(run).histories, run, None, "global_step")
    assert result is not None
    return result


def test_the_history_has_the_steps_that_solved_the_prompt(run: Run) -> None:
    for step, accs in [(1, [0, 0]), (2, [0, 1]), (4, [1, 1])]:
        index_responses(run, step, list(accs))
    line = load_run_history(run)
    assert [(item.step, item.answers, item.mean, item.correct) for item in line.steps] == [
        (1, 2, 0.0, 0), (2, 2, 0.5, 1), (4, 2, 1.0, 2),
    ]  # fmt: skip
    assert [item.step for item in line.solved_steps] == [2, 4] and not line.regressed


def test_a_prompt_that_the_last_step_does_not_solve_any_more_has_regressed(run: Run) -> None:
    for step, acc in [(1, 0), (2, 1), (3, 0), (4, 0)]:
        index_responses(run, step, [acc])
    line = load_run_history(run)
    assert line.regressed
    compared = [history.find_comparison_step(line, step) for step in (4, 2)]
    assert [item and (item[0].step, item[1]) for item in compared] == [
        (2, "the last step that solved it"), (1, "the step before"),
    ]  # fmt: skip


def test_a_prompt_without_evaluated_answers_is_neither_solved_nor_regressed(run: Run) -> None:
    index_responses(run, 1, [None])
    line = load_run_history(run)
    assert (line.evaluated_steps, line.solved_steps, line.regressed) == ([], [], False)
    assert history.find_comparison_step(line, 1) is None


def test_earlier_attempts_and_other_runs_of_the_project_have_lines_of_their_own(run: Run, project: Project) -> None:
    for step in (1, 2, 3):
        index_responses(run, step, [0], attempt="a")
    index_responses(run, 3, [1], attempt="b")
    other = builders.run(project, "other")
    index_responses(other, 7, [1])
    index_responses(builders.run(builders.project("elsewhere"), "hidden"), 1, [1])
    deleted = builders.run(project, "binned")
    index_responses(deleted, 1, [1])
    Run.objects.filter(pk=deleted.pk).update(deleted_at=deleted.created_at)
    found = load_history(run).histories
    steps = [(line.run.name, line.attempt and line.attempt.key, [point.step for point in line.steps]) for line in found]
    assert steps == [("grpo", None, [1, 2, 3]), ("grpo", "a", [3]), ("other", None, [7])]
    assert [point.correct for point in found[0].steps] == [0, 0, 1]


def test_a_trajectory_counts_once_and_splits_are_separate(run: Run) -> None:
    turns = [{"prompt": "2+2?", "response": str(n), "trajectory": "t", "turn": n, "score": n} for n in range(3)]
    index_file(run, lines(*turns), format="native")
    index_responses(run, 1, [1], split="eval")
    assert [(point.answers, point.mean) for point in load_run_history(run).steps] == [(1, 2.0)]
    assert [line.steps[0].answers for line in load_history(run, "eval").histories] == [1]


def test_different_ground_truths_of_one_text_are_listed(run: Run) -> None:
    for step, truth in [(1, "4"), (2, "four")]:
        index_file(run, lines({"prompt": "q", "response": "x", "ground_truth": truth}), step=step, format="native")
    assert load_history(run).expected == ["4", "four"]


def test_the_best_answer_is_a_correct_one(run: Run) -> None:
    rows = [
        {"prompt": "q", "response": name, "score": score, "acc": acc}
        for name, score, acc in [("high", 9.0, 0), ("right", 1.0, 1), ("low", 0.0, 0)]
    ]
    index_file(run, lines(*rows), format="native")
    result = history.load_prompt_answers(load_run_history(run), Sample.objects.all()[0].prompt_key, "train", 1)
    assert [item.tail for item in result] == ["low", "right", "high"]
    best = history.find_best_answer(result)
    assert best is not None and best.tail == "right"
    assert history.find_best_answer([]) is None


def test_many_steps_take_as_many_queries_as_one(run: Run) -> None:
    index_responses(run, 1, [1])
    with CaptureQueriesContext(connection) as few:
        load_history(run)
    for step in range(2, 30):
        index_responses(run, step, [1, 0])
    with CaptureQueriesContext(connection) as many:
        load_history(run)
    assert len(few) == len(many) <= 6


def test_one_right_answer_of_four_does_not_solve_a_prompt_in_history_and_heatmap(run: Run) -> None:
    index_responses(run, 1, [1, 0, 0, 0])
    index_responses(run, 2, [1, 1, 0, 0])
    assert [step.step for step in load_run_history(run).solved_steps] == [2]
    (line,) = heatmap.load_prompt_heatmap(run, "train", "global_step").rows
    assert line.solved == (False, True)
