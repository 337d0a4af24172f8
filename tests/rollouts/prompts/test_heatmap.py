"""The heatmap shows at which steps each prompt was solved."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pytest_django import DjangoAssertNumQueries

from rollouts.models import Project, Run
from rollouts.prompts import heatmap
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

NOW = datetime.now(UTC)
# Accuracy per step: 1, 2, 3; None where the step lacks the prompt.
ACCURACIES = {
    "never": [0, 0, 0],
    "always": [1, 1, 1],
    "learned": [0, 1, 1],
    "fell": [0, 1, 0],
    "half": [None, 0, 1],
}


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for at in range(3):
        rows = [
            {
                "prompt": name,
                "response": f"{name} {at}",
                "score": accuracies[at],
                "acc": accuracies[at],
                "data_source": name[0],
            }
            for name, accuracies in ACCURACIES.items()
            if accuracies[at] is not None
        ]
        once = {"prompt": f"only at {at}", "response": "x", "score": 1, "acc": 1}
        index_file(run, lines(*rows, once), step=at + 1, split="eval", source=f"eval/{at}", format="native")
    run.refresh_from_db()
    return run


def load_kinds(run: Run) -> dict[str, str]:
    """Kind by the first letter of the prompt, which is its data source."""
    return {line.source: line.kind for line in heatmap.load_prompt_heatmap(run, "eval", "global_step").rows}


def test_prompts_are_classified_by_their_accuracy_over_the_steps(run: Run) -> None:
    assert load_kinds(run) == {"n": "never", "a": "always", "l": "mixed", "f": "regressed", "h": "mixed"}
    result = heatmap.load_prompt_heatmap(run, "eval", "global_step")
    assert result.count_kinds() == {"all": 5, "never": 1, "regressed": 1, "mixed": 2, "always": 1}
    assert result.evaluated
    assert result.steps == (1, 2, 3)


def test_a_step_that_lacks_a_prompt_has_no_value_for_it(run: Run) -> None:
    half = next(line for line in heatmap.load_prompt_heatmap(run, "eval", "global_step").rows if line.source == "h")
    assert half.values == (None, 0.0, 1.0)
    assert half.first_solved == 2


def test_prompts_are_sorted_in_the_requested_order(run: Run) -> None:
    result = heatmap.load_prompt_heatmap(run, "eval", "global_step")
    assert [line.source for line in result.select_rows("all", "hardest")][0] == "n"
    assert [line.source for line in result.select_rows("all", "easiest")][0] == "a"
    assert [line.source for line in result.select_rows("all", "regressed")][0] == "f"
    assert [line.source for line in result.select_rows("all", "first solved")][0] == "a"
    assert [line.source for line in result.select_rows("never", "hardest")] == ["n"]


def test_a_cell_is_the_share_of_correct_responses(project: Project) -> None:
    run = builders.run(project)
    for step in (1, 2):
        rows = [{"prompt": "q", "response": f"{n}", "score": n % 2, "acc": n % 2} for n in range(4)]
        index_file(run, lines(*rows), step=step, source=f"{step}", format="native")
    (line,) = heatmap.load_prompt_heatmap(run, "train", "global_step").rows
    assert line.values == (0.5, 0.5)


def test_without_a_rule_a_cell_is_the_mean_score(project: Project) -> None:
    project.correct = "nothing=1"
    project.save()
    run = builders.run(project)
    for step in (1, 2):
        index_file(
            run, lines({"prompt": "q", "response": "r", "score": -0.5}), step=step, source=f"{step}", format="native"
        )
    result = heatmap.load_prompt_heatmap(run, "train", "global_step")
    assert not result.evaluated
    assert result.rows[0].values == (-0.5, -0.5)
    assert result.rows[0].kind == "never"


def test_at_most_forty_of_many_steps_are_selected_with_the_first_and_the_last() -> None:
    selected = heatmap.select_heatmap_steps(range(1000))
    assert len(selected) == heatmap.MAX_HEATMAP_STEPS
    assert (selected[0], selected[-1]) == (0, 999)


def test_a_heatmap_that_is_loaded_again_takes_one_query(
    run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    heatmap.load_prompt_heatmap(run, "eval", "global_step")
    with django_assert_num_queries(1):
        heatmap.load_prompt_heatmap(run, "eval", "global_step")
