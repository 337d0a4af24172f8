"""Each facet of the catalog is a term of the query language, and finds what its step counts."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts import judging
from rollouts.errors import BadInput
from rollouts.facets import CATALOG
from rollouts.models import Project, Run, Step
from rollouts.search import find
from tests import make
from tests.rollouts.pushing import indexed, lines

pytestmark = pytest.mark.django_db


def answer(group: str, n: int, acc: int | None, **more: Any) -> dict[str, Any]:
    judged = {} if acc is None else {"acc": acc}
    return {"prompt": f"What is {group}?", "response": f"{group} {n}", "group": group, "index": n, **judged, **more}


@pytest.fixture
def run(project: Project) -> Run:
    run = make.run(project)
    rows = [
        *(answer("all", n, 1) for n in range(3)),
        *(answer("none", n, 0) for n in range(2)),
        *(answer("some", n, n) for n in range(2)),
        answer("unjudged", 0, None),
    ]
    indexed(run, lines(*rows), format="native")
    return run


def groups(run: Run, q: str) -> list[str]:
    return sorted({sample.group for sample in find(run, q=q).samples})


def test_groups_that_all_or_none_solved_are_found_and_counted_alike(run: Run) -> None:
    assert groups(run, "is:solve-all") == ["all"]
    assert groups(run, "is:solve-none") == ["none"]
    assert groups(run, "-is:solve-all -is:solve-none") == ["some", "unjudged"]
    told = Step.objects.get().facets
    assert (told["solve-all"], told["solve-none"]) == (1, 1)


def test_a_group_is_one_of_its_step(run: Run) -> None:
    indexed(run, lines(answer("all", 0, 0), answer("none", 0, 1)), step=2, format="native")
    assert [sample.step.step for sample in find(run, q="is:solve-none group:all").samples] == [2]
    assert find(run, step=1, q="is:solve-all").total == 3


@pytest.mark.parametrize("facet", CATALOG, ids=lambda facet: facet.name)
def test_every_facet_is_a_term(run: Run, facet: Any) -> None:
    assert find(run, q=facet.term).total >= 0
    assert find(run, q=f"-{facet.term}").total <= 8


def test_what_is_correct_cannot_be_said_by_what_was_solved() -> None:
    with pytest.raises(BadInput, match="cannot ask for `is:solve-all`"):
        judging.rule("is:solve-all or acc=1")
