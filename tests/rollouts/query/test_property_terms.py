"""Each facet of the catalog is a term of the query language, and finds what its step counts."""

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


def plain(n: int) -> str:
    return f"So w{n} and w{n + 1}.\nAnswer: {n}"


# A step of which each facet is shown by some samples and not by others.
SHOWING = [
    *(answer("all", n, 1, score=1, response=plain(n)) for n in range(3)),
    *(answer("none", n, 0, score=n, response=plain(n)) for n in range(2)),
    *(answer("some", n, n % 2, score=n, response=plain(n)) for n in range(20)),
    *(answer("twice", n, None, response=plain(0)) for n in range(2)),
    answer("odd", 0, None, response=plain(0), truncated=True),
    answer("odd", 1, None, response="w1 w2 and then it went on and on, and on, without an"),
    answer("odd", 2, None, response="W" * 200),
    answer("odd", 3, None, response=f"这里是中文的答案和更多的字。 {plain(3)}"),
    answer("odd", 4, None, response=" "),
    answer("odd", 7, 1, score=1, response="Answer: 43", ground_truth="40"),
    answer("odd", 8, 0, score=0, response="Answer: 43", ground_truth="40"),
    answer("odd", 9, None, response="\x00\x01\ufffd\ufffd. Answer: 3"),
    answer("odd", 6, None, response=plain(6), filtered=True),
    answer("odd", 10, None, response=plain(10), guidance="again"),
    answer("odd", 5, None, response=f"<tool_call>\n{{}}\n</tool_call>\n{plain(5)}"),
]


def groups(run: Run, q: str) -> list[str]:
    return sorted({sample.group for sample in find_samples(run, q=q).samples})


def test_groups_that_all_or_none_solved_are_found_and_counted_alike(run: Run) -> None:
    assert groups(run, "is:solve-all") == ["all"]
    assert groups(run, "is:solve-none") == ["none"]
    assert groups(run, "-is:solve-all -is:solve-none") == ["some", "unjudged"]
    result = Step.objects.get().facets
    assert (result["solve-all"], result["solve-none"]) == (1, 1)


def test_a_group_is_one_of_its_step(run: Run) -> None:
    index_file(run, lines(answer("all", 0, 0), answer("none", 0, 1)), step=2, format="native")
    assert [sample.step.step for sample in find_samples(run, q="is:solve-none group:all").samples] == [2]
    assert find_samples(run, step=1, q="is:solve-all").total == 3


def test_what_is_kept_of_a_steps_groups_is_forgotten_with_the_steps_next_version(run: Run) -> None:
    index_file(run, lines(answer("late", 0, 0)), step=2, format="native", source="file")
    assert groups(run, "is:solve-none") == ["late", "none"]
    index_file(run, lines(answer("late", 0, 1)), step=2, format="native", source="file")
    assert groups(run, "is:solve-none") == ["none"]
    assert groups(run, "is:solve-all") == ["all", "late"]


def test_steps_of_more_samples_than_are_asked_at_once_have_all_their_groups(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(2, 7):
        index_file(run, lines(answer(f"all/{step}", 0, 1), answer("none", 0, 0)), step=step, format="native")
    at_once = find_samples(run, q="is:solve-all").total
    group_outcomes.outcome_cache.clear()
    monkeypatch.setattr(group_outcomes, "BATCH_SAMPLES", 4)
    assert find_samples(run, q="is:solve-all").total == at_once == 3 + 5
    assert groups(run, "is:solve-none step:3..5") == ["none"]


@pytest.mark.parametrize("facet", PROPERTY_CATALOG, ids=lambda facet: facet.name)
def test_every_facet_is_a_term_that_parts_the_samples(run: Run, facet: Any) -> None:
    index_file(run, lines(*SHOWING), step=2, format="native")
    with_it, without = (find_samples(run, step=2, q=q).total for q in (facet.term, f"-{facet.term}"))
    assert with_it > 0 and without > 0 and with_it + without == len(SHOWING)


def test_what_is_correct_cannot_be_said_by_what_was_solved() -> None:
    with pytest.raises(InvalidInputError, match="cannot use `is:solve-all`: the rule itself defines it"):
        correctness_rule.parse_correctness_rule("is:solve-all or acc=1")


@pytest.mark.parametrize("rule", ["acc>=0.5.", "acc>=0.8;", "format=1 acc>=score"])
def test_a_rule_compares_a_logged_key_with_a_number(rule: str) -> None:
    """A search may compare the numbers of two re-scores."""
    with pytest.raises(InvalidInputError, match="`acc>=` needs a number"):
        correctness_rule.parse_correctness_rule(rule)
