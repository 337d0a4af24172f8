"""The responses of one prompt in one step, grouped by their answers."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.models import Run, Sample, Step
from rollouts.prompts import groups
from rollouts.prompts.groups import GroupView
from tests.rollouts.support.push import index_file, lines


def build_response(n: int, answer: str, **more: Any) -> dict[str, Any]:
    text = f"Try {n}. " + "x" * 600 + (f"\n#### {answer}" if answer else "")
    right = answer == "204"
    return {"prompt": "17*12?", "response": text, "score": float(right), "group": "g", "index": n, **more}


def load_group(run: Run, rows: list[dict[str, Any]], **options: Any) -> GroupView:
    index_file(run, lines(*rows), 1)
    result = groups.load_group_view(Step.objects.get(run=run, step=1, superseded=False), "g", **options)
    assert result
    return result


def test_responses_are_grouped_by_answer_the_most_frequent_first_and_none_last(run: Run) -> None:
    answers = ["204"] * 17 + [""] * 10 + ["210"] * 9 + ["7"]
    result = load_group(run, [build_response(n, answer) for n, answer in enumerate(answers)])
    values = [(fold.count, fold.answer, fold.correctness) for fold in result.group_by_answer()]
    assert values == [(17, "204", "correct"), (9, "210", ""), (1, "7", ""), (10, "", "")]
    assert result.collapsed and not result.zero_variance and (result.correct_count, result.evaluated_count) == (17, 37)


def test_responses_are_sorted_by_score_with_unscored_ones_last(run: Run) -> None:
    scores = [0.5, None, -1.0, 0.5, 1.0]
    rows = [{**build_response(n, str(n)), "score": score} for n, score in enumerate(scores)]
    assert [response.sample.index for response in load_group(run, rows).responses] == [2, 0, 3, 4, 1]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([0.0, 0.0], True), ([0.0, 0.1], False), ([1.0], False), ([None, None], False), ([1.0, None, 1.0], True)],
)
def test_zero_variance_means_two_or_more_equal_scores(run: Run, scores: list[float | None], expected: bool) -> None:
    rows = [{**build_response(n, str(n)), "score": score} for n, score in enumerate(scores)]
    assert load_group(run, rows).zero_variance is expected


def test_only_the_end_of_a_response_is_loaded_unless_it_is_expanded(run: Run) -> None:
    rows = [build_response(n, "204") for n in range(3)]
    ends = load_group(run, rows)
    assert {len(response.text or "") for response in ends.responses} == {groups.TAIL_CHARS}
    second = ends.responses[1].sample
    result = groups.load_group_view(ends.step, "g", expanded=(second.pk[:8],))
    assert result and [response.expanded for response in result.responses] == [False, True, False]
    assert result.responses[1].text == rows[1]["response"]
    every = groups.load_group_view(ends.step, "g", expand_all=True)
    assert every and all(response.expanded for response in every.responses)


def test_a_collapsed_group_does_not_expand_all_responses(run: Run) -> None:
    result = load_group(run, [build_response(n, "204") for n in range(9)], expand_all=True)
    assert not any(response.expanded for response in result.responses)


def test_a_trajectory_is_listed_once_with_its_last_sample(run: Run) -> None:
    rows = [build_response(n, str(n), trajectory=str(n // 2), turn=n % 2) for n in range(4)]
    result = load_group(run, rows)
    assert sorted(str(response.answer) for response in result.responses) == ["1", "3"]
    assert result.intermediate_count == 2


def test_prompts_that_differ_within_a_group_are_counted(run: Run) -> None:
    result = load_group(run, [build_response(0, "1"), {**build_response(1, "2"), "prompt": "another"}])
    assert (result.prompt, result.prompt_count) == ("17*12?", 2)


def test_a_missing_group_has_no_view(run: Run) -> None:
    result = load_group(run, [build_response(0, "1")])
    assert groups.load_group_view(result.step, "h") is None and groups.load_group_view(result.step, "") is None


def test_a_group_is_found_in_the_step_of_that_number_that_has_it(run: Run) -> None:
    index_file(run, lines(build_response(0, "1")), 1)
    index_file(run, lines({**build_response(0, "1"), "group": "fed"}), 1, step_kind="feed_index", source="other")
    first, feed_step = (Step.objects.get(run=run, step=1, step_kind=kind) for kind in ("global_step", "feed_index"))
    assert groups.find_group_step(run, first, "fed", None) == feed_step
    assert groups.find_group_step(run, first, "g", None) == first == groups.find_group_step(run, first, "nowhere", None)


def build_rows(*texts: str) -> list[dict[str, Any]]:
    return [{"prompt": "p", "response": text, "score": 0.0, "group": "g", "index": n} for n, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "same"),
    [
        (["We begin by reading the question again.\nso 5", "We begin by reading the question again.\nso 7"], 43),
        (["We begin by reading the question against", "We begin by reading the question again"], 33),
        (["short same 1", "short same 2"], 0),
        (["We begin by reading the question again."] * 2, 39),
        (["We begin by reading the question again."], 0),
        (["x" * 100, "x" * 99 + "y"], 0),
    ],
)
def test_the_shared_prefix_of_texts_ends_with_a_word(run: Run, texts: list[str], same: int) -> None:
    assert load_group(run, build_rows(*texts)).shared_prefix_chars == same


def test_only_texts_that_are_shown_from_their_beginning_have_a_shared_prefix(run: Run) -> None:
    rows = [build_response(n, "204") | {"response": "The same long beginning of all. " * 40 + str(n)} for n in range(3)]
    result = load_group(run, rows)
    assert result.shared_prefix_chars == 0
    pks = tuple(item.sample.pk for item in result.responses[:2])
    full = groups.load_group_view(result.step, "g", expanded=pks)
    assert full and full.shared_prefix_chars == 40 * 32


def test_a_group_can_be_filtered_by_right_or_wrong_responses(run: Run) -> None:
    result = load_group(run, [build_response(n, answer) for n, answer in enumerate(["204", "7", "204"])])
    assert [len(result.filter_responses(word).responses) for word in ("right", "wrong", "", "odd")] == [2, 1, 3, 3]
    assert (result.correct_count, result.wrong_count) == (2, 1)


def test_a_response_without_a_score_is_not_the_best_if_others_have_negative_scores() -> None:
    lost, unscored = Sample(pk="a", score=-1.0), Sample(pk="b", score=None)
    assert groups.find_highest_scored([lost, unscored]) is lost
