"""What a sample is only beside the others is said of its step, whichever dumps the others came in."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from rollouts.indexing.indexer import index_dump
from rollouts.models import Run, Sample, Step
from rollouts.samples.text_properties import TEXT_PROPERTY_BITS
from tests.rollouts.support.push import indexed, lines, push

pytestmark = pytest.mark.django_db


def answer(n: int, text: str = "", **more: Any) -> dict[str, Any]:
    return {"prompt": "q", "group": "g", "response": text or f"So w{n} and w{n + 1}.\nAnswer: {n}", "score": 1, **more}


def call(run: Run, name: str, *rows: dict[str, Any], **header: Any) -> None:
    """One of many calls that log samples of the same step."""
    indexed(run, lines(*rows), source=name, format="native", **header)


def having(facet: str) -> list[str]:
    result = Sample.objects.filter(visible=True).order_by("tail")
    return [sample.tail for sample in result if sample.facets & TEXT_PROPERTY_BITS[facet]]


def test_equal_responses_of_two_processes_are_duplicates(run: Run) -> None:
    call(run, "0", answer(0, "the same"), producer="0")
    assert having("duplicate") == []
    call(run, "1", answer(0, "the same"), answer(1, "another"), producer="1")
    assert having("duplicate") == ["the same", "the same"]
    assert Step.objects.get().facets["duplicate"] == 2


def test_a_duplicate_is_none_once_the_other_is_gone(run: Run) -> None:
    call(run, "0", answer(0, "the same"), producer="0")
    call(run, "1", answer(0, "the same"), producer="1")
    call(run, "1", answer(0, "another"), producer="1")
    assert having("duplicate") == []


def test_a_habit_of_the_step_shows_in_a_call_of_one_sample(run: Run) -> None:
    for n in range(9):
        call(run, f"call-{n}", answer(n))
    call(run, "last", answer(9, "w1 w2 and then it went on and on, and on, without an"))
    assert having("no-marker") == having("trunc?") == ["w1 w2 and then it went on and on, and on, without an"]


def test_lengths_of_the_whole_step_show_where_it_was_cut(run: Run) -> None:
    for n, tokens in enumerate([40, 60, 512, 512, 30, 20]):
        call(run, f"call-{n}", answer(n, f"response {n}", response_ids=[1] * tokens))
    assert having("trunc?") == ["response 2", "response 3"]


def test_what_the_trainer_says_of_truncation_is_believed(run: Run) -> None:
    for n, tokens in enumerate([40, 60, 512, 512, 30, 20]):
        call(run, f"call-{n}", answer(n, f"response {n}", response_ids=[1] * tokens, truncated=n == 2))
    assert having("trunc?") == []
    assert Step.objects.get().truncated == 1


def test_a_trajectory_whose_turns_come_in_several_calls_counts_once(run: Run) -> None:
    for turn in (1, 0, 2):
        call(run, f"turn-{turn}", answer(turn, f"turn {turn}", trajectory="t", turn=turn))
    call(run, "other", answer(9, "other", trajectory="u", turn=0))
    finals = Sample.objects.filter(final=True).order_by("tail").values_list("tail", flat=True)
    step = Step.objects.get()
    assert list(finals) == ["other", "turn 2"]
    assert (step.samples, step.trajectories, step.facets["intermediate"]) == (4, 2, 2)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_facets_do_not_depend_on_who_was_indexed_first(run: Run, order: tuple[int, ...]) -> None:
    first = [answer(n, trajectory="t", turn=n) for n in range(5)]
    dumps = [
        push(run, lines(*first), source="a", format="native"),
        push(run, lines(*(answer(n) for n in range(4, 9))), source="b", format="native", producer="1"),
        push(run, lines(answer(9, "no end and no marker, however long it becomes")), source="c", format="native"),
    ]
    for position in order:
        index_dump(dumps[position].pk)
    assert having("duplicate") == ["So w4 and w5. Answer: 4"] * 2
    assert len(having("no-marker")) == 1
    assert Sample.objects.filter(final=False).count() == 4
