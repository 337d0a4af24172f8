"""Each facet of the catalog is a term of the query language and finds the samples that the step counts."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.errors import InvalidInputError
from rollouts.models import Project, Run, Step
from rollouts.query import correctness_rule, group_outcomes
from rollouts.query.search import find_samples
from rollouts.samples import PROPERTY_CATALOG
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db


def answer(group: str, n: int, acc: int | None, **more: Any) -> dict[str, Any]:
    evaluated = {} if acc is None else {"acc": acc}
    return {"prompt": f"What is {group}?", "response": f"{group} {n}", "group": group, "index": n, **evaluated, **more}


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    rows = [
        *(answer("all", n, 1) for n in range(3)),
        *(answer("none", n, 0) for n in range(2)),
        *(answer("some", n, n) for n in range(2)),
        answer("unjudged", 0, None),
    ]
    index_file(run, lines(*rows), format="native")
    return run


def plain_response(n: int) -> str:
    return f"So w{n} and w{n + 1}.\nAnswer: {n}"


# Each facet is true for some of these rows and false for others.
ROWS_OF_ALL_FACETS = [
    *(answer("all", n, 1, score=1, response=plain_response(n)) for n in range(3)),
    *(answer("none", n, 0, score=n, response=plain_response(n)) for n in range(2)),
    *(answer("some", n, n % 2, score=n, response=plain_response(n)) for n in range(20)),
    *(answer("twice", n, None, response=plain_response(0)) for n in range(2)),
    answer("odd", 0, None, response=plain_response(0), truncated=True),
    answer("odd", 1, None, response="w1 w2 and then it went on and on, and on, without an"),
    answer("odd", 2, None, response="W" * 200),
    answer("odd", 3, None, response=f"这里是中文的答案和更多的字。 {plain_response(3)}"),
    answer("odd", 4, None, response=" "),
    answer("odd", 7, 1, score=1, response="Answer: 43", ground_truth="40"),
    answer("odd", 8, 0, score=0, response="Answer: 43", ground_truth="40"),
    answer("odd", 9, None, response="\x00\x01\ufffd\ufffd. Answer: 3"),
    answer("odd", 6, None, response=plain_response(6), filtered=True),
    answer("odd", 10, None, response=plain_response(10), guidance="again"),
    answer("odd", 5, None, response=f"<tool_call>\n{{}}\n</tool_call>\n{plain_response(5)}"),
]


def find_groups(run: Run, q: str) -> list[str]:
    return sorted({sample.group for sample in find_samples(run, q=q).samples})


def test_groups_that_all_or_none_solved_are_found_and_counted_alike(run: Run) -> None:
    assert find_groups(run, "is:solve-all") == ["all"]
    assert find_groups(run, "is:solve-none") == ["none"]
    assert find_groups(run, "-is:solve-all -is:solve-none") == ["some", "unjudged"]
    result = Step.objects.get().facets
    assert (result["solve-all"], result["solve-none"]) == (1, 1)


def test_a_group_belongs_to_its_step(run: Run) -> None:
    index_file(run, lines(answer("all", 0, 0), answer("none", 0, 1)), step=2, format="native")
    assert [sample.step.step for sample in find_samples(run, q="is:solve-none group:all").samples] == [2]
    assert find_samples(run, step=1, q="is:solve-all").total == 3


def test_cached_outcomes_of_groups_are_dropped_when_the_step_changes(run: Run) -> None:
    index_file(run, lines(answer("late", 0, 0)), step=2, format="native", source="file")
    assert find_groups(run, "is:solve-none") == ["late", "none"]
    index_file(run, lines(answer("late", 0, 1)), step=2, format="native", source="file")
    assert find_groups(run, "is:solve-none") == ["none"]
    assert find_groups(run, "is:solve-all") == ["all", "late"]


def test_all_groups_are_found_if_steps_are_read_in_several_batches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2, 7):
        index_file(run, lines(answer(f"all/{step}", 0, 1), answer("none", 0, 0)), step=step, format="native")
    total = find_samples(run, q="is:solve-all").total
    group_outcomes.outcome_cache.clear()
    monkeypatch.setattr(group_outcomes, "BATCH_SAMPLES", 4)
    assert find_samples(run, q="is:solve-all").total == total == 3 + 5
    assert find_groups(run, "is:solve-none step:3..5") == ["none"]


@pytest.mark.parametrize("facet", PROPERTY_CATALOG, ids=lambda facet: facet.name)
def test_every_facet_is_a_term_that_matches_some_samples(run: Run, facet: Any) -> None:
    index_file(run, lines(*ROWS_OF_ALL_FACETS), step=2, format="native")
    matching, others = (find_samples(run, step=2, q=q).total for q in (facet.term, f"-{facet.term}"))
    assert matching > 0 and others > 0 and matching + others == len(ROWS_OF_ALL_FACETS)


def test_a_correctness_rule_cannot_use_solve_all() -> None:
    with pytest.raises(InvalidInputError, match="cannot use `is:solve-all`: the rule itself defines it"):
        correctness_rule.parse_correctness_rule("is:solve-all or acc=1")


@pytest.mark.parametrize("rule", ["acc>=0.5.", "acc>=0.8;", "format=1 acc>=score"])
def test_a_rule_compares_a_logged_key_with_a_number(rule: str) -> None:
    """A search may compare the numbers of two re-scores."""
    with pytest.raises(InvalidInputError, match="`acc>=` needs a number"):
        correctness_rule.parse_correctness_rule(rule)
