"""Properties that compare a sample with its step do not depend on how the step is split into dumps."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from rollouts.models import Run, Sample, Step, StepTemplate
from rollouts.samples import TEXT_PROPERTY_BITS
from tests.rollouts.support.push import index_file, index_one_dump, lines, push

pytestmark = pytest.mark.django_db


def answer(n: int, text: str = "", **more: Any) -> dict[str, Any]:
    return {"prompt": "q", "group": "g", "response": text or f"So w{n} and w{n + 1}.\nAnswer: {n}", "score": 1, **more}


def index_call(run: Run, name: str, *rows: dict[str, Any], **header: Any) -> None:
    """Indexes one of many calls that log samples of the same step."""
    index_file(run, lines(*rows), source=name, format="native", **header)


def list_tails_with(facet: str) -> list[str]:
    result = Sample.objects.filter(visible=True).order_by("tail")
    return [sample.tail for sample in result if sample.facets & TEXT_PROPERTY_BITS[facet]]


def test_equal_responses_of_two_processes_are_duplicates(run: Run) -> None:
    index_call(run, "0", answer(0, "the same"), producer="0")
    assert list_tails_with("duplicate") == []
    index_call(run, "1", answer(0, "the same"), answer(1, "another"), producer="1")
    assert list_tails_with("duplicate") == ["the same", "the same"]
    assert Step.objects.get().facets["duplicate"] == 2


def test_a_sample_is_no_duplicate_after_the_other_one_is_replaced(run: Run) -> None:
    index_call(run, "0", answer(0, "the same"), producer="0")
    index_call(run, "1", answer(0, "the same"), producer="1")
    index_call(run, "1", answer(0, "another"), producer="1")
    assert list_tails_with("duplicate") == []


def test_a_missing_marker_is_found_in_a_call_of_one_sample(run: Run) -> None:
    for n in range(9):
        index_call(run, f"call-{n}", answer(n))
    index_call(run, "last", answer(9, "w1 w2 and then it went on and on, and on, without an"))
    assert (
        list_tails_with("no-marker")
        == list_tails_with("trunc?")
        == ["w1 w2 and then it went on and on, and on, without an"]
    )


def test_truncation_is_inferred_from_the_lengths_of_the_whole_step(run: Run) -> None:
    for n, tokens in enumerate([40, 60, 512, 512, 30, 20]):
        index_call(run, f"call-{n}", answer(n, f"response {n}", response_ids=[1] * tokens))
    assert list_tails_with("trunc?") == ["response 2", "response 3"]


def test_recorded_truncation_overrides_inferred_truncation(run: Run) -> None:
    for n, tokens in enumerate([40, 60, 512, 512, 30, 20]):
        index_call(run, f"call-{n}", answer(n, f"response {n}", response_ids=[1] * tokens, truncated=n == 2))
    assert list_tails_with("trunc?") == []
    assert Step.objects.get().truncated == 1


def test_a_trajectory_whose_turns_come_in_several_calls_counts_once(run: Run) -> None:
    for turn in (1, 0, 2):
        index_call(run, f"turn-{turn}", answer(turn, f"turn {turn}", trajectory="t", turn=turn))
    index_call(run, "other", answer(9, "other", trajectory="u", turn=0))
    finals = Sample.objects.filter(final=True).order_by("tail").values_list("tail", flat=True)
    step = Step.objects.get()
    assert list(finals) == ["other", "turn 2"]
    assert (step.samples, step.trajectories, step.facets["intermediate"]) == (4, 2, 2)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_facets_do_not_depend_on_the_order_of_indexing(run: Run, order: tuple[int, ...]) -> None:
    first = [answer(n, trajectory="t", turn=n) for n in range(5)]
    dumps = [
        push(run, lines(*first), source="a", format="native"),
        push(run, lines(*(answer(n) for n in range(4, 9))), source="b", format="native", producer="1"),
        push(run, lines(answer(9, "no end and no marker, however long it becomes")), source="c", format="native"),
    ]
    for position in order:
        index_one_dump(dumps[position])
    assert list_tails_with("duplicate") == ["So w4 and w5. Answer: 4"] * 2
    assert len(list_tails_with("no-marker")) == 1
    assert Sample.objects.filter(final=False).count() == 4


def test_index_rows_do_not_depend_on_how_many_dumps_the_step_has(run: Run) -> None:
    repetition = "and again and again we go, " * 20
    tool_call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    generations = [
        *(answer(n) for n in range(9)),
        answer(10, "the same"), answer(11, "the same"),
        answer(20, repetition), answer(21, " \n"), answer(22, "Это ответ на вопрос.\nAnswer: 3"),
        answer(23, messages=[{"role": "user", "content": "q"}, tool_call]),
        answer(24, messages=[{"role": "tool", "content": "7"}]), answer(25, "<tool_call>add</tool_call>\nAnswer: 1"),
        answer(26, filtered=True), answer(27, filtered=False), answer(28, filtered=1.0),
        answer(39, guidance="bad, half"),
        answer(29, response_ids=[5, 6, 7], advantages=[0.1, 0.1, 0.1]), answer(30, response_length=12),
        answer(31, acc=True), answer(32, acc=0.0), answer(33, rewards={"acc": 1.0, "filtered": 1.0}),
        answer(34, truncated=True), answer(35, finish_reason="length"), answer(36, trajectory="t", turn=0),
        answer(37, trajectory="t", turn=1), answer(38, index=3, data_source="gsm8k", ground_truth="8" * 90),
        answer(40, "half \ud800 of a pair.\nAnswer: 1"),
        answer(42, ground_truth="41", rewards={"acc": 1.0, "format": 0.5}),
        answer(43, "\ufffd\x00\x01\x02.\nAnswer: 1"),
        *(answer(44, f"We compute {n} times {n}.\nAnswer: {n}", group=f"g{n % 3}") for n in range(6)),
        answer(41, "it went on and on, and on, " * 9 + "without an"),
    ]  # fmt: skip
    for step, parts in enumerate([[generations], [generations[:-1], generations[-1:]]], start=1):
        for number, part in enumerate(parts):
            index_file(run, lines(*part), step, source=f"call-{number}", format="native")
    from_one, from_two = (read_index_rows(step) for step in (1, 2))
    assert from_two == from_one
    unused = {name for name, bit in TEXT_PROPERTY_BITS.items() if not any(row["facets"] & bit for row in from_one)}
    assert unused == {"no-text"}  # the format native needs a text
    assert sum(row["opening"] is not None for row in from_one) >= 6
    assert StepTemplate.objects.filter(step__step=1).values_list("text", "samples", "groups")[0] == (
        "We compute \x01 times \x01. Answer: \x01",
        6,
        3,
    )
    assert len(from_one) == len(generations)
    counts = Step.objects.get(step=2).facets
    assert (counts["tool"], counts["filtered"]) == (3, 2)


def read_index_rows(step: int) -> list[dict[str, Any]]:
    """The visible rows of a step, without ids and positions."""
    rows = Sample.objects.filter(step__step=step, visible=True).order_by("tail", "chars").values()
    return [{**row, **dict.fromkeys(("id", "step_id", "dump_id", "ordinal"))} for row in rows]
