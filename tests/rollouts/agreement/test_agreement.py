"""Agreement of people: pairs, disagreements, gold items, and everything that is not defined."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.agreement import (
    CANNOT_JUDGE,
    ItemAnswer,
    Marks,
    Reason,
    decide_values,
    distances,
    find_disagreements,
    measure_accuracy,
    measure_agreement,
    measure_span_agreement,
    split_choices,
)
from rollouts.agreement.estimates import MIN_INTERVAL_ITEMS, MIN_LABELLED, TEXTS


def read_answers(**people: list[Any]) -> list[ItemAnswer]:
    return [ItemAnswer(item, person, value) for person, values in people.items() for item, value in enumerate(values)]


def get_reasons(answers: list[ItemAnswer], kind: str = "choice") -> tuple[Reason | None, Reason | None, Reason | None]:
    result = measure_agreement(answers, kind)
    return result.percent.reason, result.alpha.reason, result.fleiss.reason


@pytest.mark.parametrize("kind", ["choice", "choices", "rating", "number", "yes-no", "text"])
def test_nothing_is_defined_without_pairs(kind: str) -> None:
    expected = Reason.FREE_TEXT if kind == "text" else Reason.NO_PAIRS
    for answers in ([], read_answers(ann=[1]), read_answers(ann=[1, None], bob=[None, 1])):
        result = measure_agreement(answers, kind)
        assert {result.percent.reason, result.alpha.reason, result.fleiss.reason} == {expected}
        assert (result.items, result.pairs, result.percent.value) == (0, (), None)


def test_one_item_has_no_coefficient() -> None:
    few, one = Reason.FEW_ITEMS, Reason.ONE_ITEM
    assert get_reasons(read_answers(ann=["a"], bob=["b"])) == (few, one, one)


@pytest.mark.parametrize(("kind", "value"), [("choice", "a"), ("choices", ["a"]), ("rating", 3), ("number", 0.1)])
def test_one_value_has_no_coefficient(kind: str, value: Any) -> None:
    result = measure_agreement(read_answers(ann=[value] * 12, bob=[value] * 12), kind)
    assert (result.percent.value, result.alpha.reason) == (1, Reason.ONE_VALUE)
    assert result.pairs[0].kappa.reason == Reason.ONE_VALUE


def test_few_items_have_no_interval() -> None:
    result = measure_agreement(read_answers(ann=["a", "b", "a"], bob=["a", "b", "b"]), "choice")
    assert result.alpha.value is not None and result.alpha.low is None and result.alpha.reason == Reason.FEW_ITEMS


def test_a_value_in_few_items_has_no_interval() -> None:
    """Two of 74 items: what alpha is depends on them alone."""
    ann = [True] * 2 + [False] * 72
    bob = [True] * 1 + [False] * 73
    alpha = measure_agreement(read_answers(ann=ann, bob=bob), "yes-no").alpha
    assert alpha.value == pytest.approx(0.66, abs=0.01)
    assert (alpha.has_interval, alpha.reason) == (False, Reason.RARE_VALUES)


def test_perfect_agreement_does_not_prove_an_alpha_of_1() -> None:
    values = ["a", "b"] * 20
    alpha = measure_agreement(read_answers(ann=values, bob=values), "choice").alpha
    assert (alpha.value, alpha.high) == (1, 1)
    assert alpha.low is not None and 0.75 < alpha.low < 0.9


def test_fleiss_kappa_needs_equally_many_answers_and_one_choice() -> None:
    assert get_reasons(read_answers(ann=["a", "b"], bob=["a", "a"], cy=["a", None]))[2] == Reason.UNEQUAL_ANSWERS
    assert get_reasons(read_answers(ann=[1, 2], bob=[1, 1]), "rating")[2] == Reason.NOT_NOMINAL


def test_cannot_judge_is_missing_in_coefficients_and_a_difference_in_lists() -> None:
    answers = read_answers(ann=["a", "b", CANNOT_JUDGE, CANNOT_JUDGE], bob=["a", "b", "b", CANNOT_JUDGE])
    result = measure_agreement(answers, "choice")
    assert (result.items, result.answered, result.percent.value) == (2, 4, 1)
    assert result.confusion is not None
    assert result.confusion.values == ("a", "b", CANNOT_JUDGE)
    assert result.confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 1, 1))
    assert [found.item for found in find_disagreements(answers, "choice")] == [2]


def test_confusion_has_the_first_person_by_name_in_its_rows() -> None:
    result = measure_agreement(read_answers(bob=["no", "no"], ann=["yes", "no"]), "choice")
    assert result.confusion is not None
    assert (result.confusion.values, result.confusion.counts) == (("no", "yes"), ((1, 0), (1, 0)))


def test_pairs_of_people_count_their_common_items() -> None:
    answers = read_answers(cy=["a", None, "b"], ann=["a", "b", "a"], bob=["b", "b", None])
    pairs = measure_agreement(answers, "choice").pairs
    assert [(pair.first, pair.second, pair.items, pair.percent.value) for pair in pairs] == [
        ("ann", "bob", 2, 0.5), ("ann", "cy", 2, 0.5), ("bob", "cy", 1, 0.0)]  # fmt: skip
    assert pairs[2].kappa.reason == Reason.ONE_ITEM


def test_a_newer_answer_replaces_the_older_one() -> None:
    answers = [*read_answers(ann=["a"], bob=["b"]), ItemAnswer(0, "bob", "a")]
    assert measure_agreement(answers, "choice").percent.value == 1
    assert find_disagreements(answers, "choice") == ()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("choice", [["x"], float("nan"), None]),
        ("rating", ["x", float("inf"), ["x"], {}]),
        ("number", [None, "3", float("nan")]),
        ("choices", [None, 4, True]),
        ("yes-no", [object(), None]),
    ],
)
def test_values_that_do_not_fit_the_kind_are_missing(kind: str, values: list[Any]) -> None:
    assert measure_agreement(read_answers(ann=values, bob=values), kind).alpha.reason == Reason.NO_PAIRS


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="Known kinds: choice"):
        measure_agreement([], "essay")


def test_numbers_of_any_size_are_measured() -> None:
    near, far = [1e9 + step for step in range(20)], [1e308, -1e308] * 10
    for values in (near, far):
        other = [values[1], *values[1:]]
        value = measure_agreement(read_answers(ann=values, bob=other), "number").alpha.value
        assert value is not None and 0.85 < value < 1


@pytest.mark.parametrize("kind", ["number", "rating"])
def test_an_outlier_of_a_third_person_does_not_change_the_kappa_of_two_others(kind: str) -> None:
    ann = [n % 10 + 1 for n in range(30)]
    bob = [value + (n % 3 == 0) for n, value in enumerate(ann)]
    (alone,) = measure_agreement(read_answers(ann=ann, bob=bob), kind).pairs
    pair = measure_agreement(read_answers(ann=ann, bob=bob, cy=[1_000_000]), kind).pairs[0]
    assert alone.kappa.value is not None and pair == alone


def test_sets_of_choices_agree_in_part() -> None:
    sets = [["a"], ["b"], ["a", "b"], [], ["c"], ["a"]] * 3
    other = [["a"], ["b"], ["a"], [], ["c"], ["c"]] * 3
    result = measure_agreement(read_answers(ann=sets, bob=other), "choices")
    as_choice = [[",".join(keys) for keys in values] for values in (sets, other)]
    exact = measure_agreement(read_answers(ann=as_choice[0], bob=as_choice[1]), "choice")
    assert (result.level, exact.level) == ("set", "nominal")
    assert result.alpha.value is not None and exact.alpha.value is not None
    assert exact.alpha.value < result.alpha.value < 1
    assert result.percent == exact.percent


def test_too_many_different_sets_are_compared_as_nominal_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "MAX_SETS", 2)
    result = measure_agreement(read_answers(ann=[["a"], ["b"], ["a", "b"]], bob=[["a"], ["b"], ["a"]]), "choices")
    assert result.level == "nominal" and result.confusion is not None
    assert result.confusion.values == (("a",), ("b",), ("a", "b"))
    assert result.confusion.by_person == {"ann": (1, 1, 1), "bob": (2, 1, 0)}


def test_each_option_is_measured_as_a_separate_question() -> None:
    options = split_choices(read_answers(ann=[["a"], ["a", "b"], None], bob=[["a"], [], ["b"]]), ["a", "b"])
    assert [answer.value for answer in options["a"]] == [True, True, None, True, False, False]
    assert measure_agreement(options["a"], "yes-no").percent.value == 0.5


def test_ratings_differ_when_they_are_far_apart() -> None:
    answers = read_answers(ann=[1, 1, 5], bob=[2, 3, 5])
    assert [found.item for found in find_disagreements(answers, "rating")] == [0, 1]
    (found,) = find_disagreements(answers, "rating", tolerance=1)
    assert (found.item, [answer.person for answer in found.answers]) == (1, ["ann", "bob"])


def test_a_decision_counts_before_the_majority() -> None:
    answers = read_answers(ann=["a", "a", "a", CANNOT_JUDGE], bob=["a", "b", "b", "b"], cy=["b", None, "b", None])
    assert decide_values(answers, "choice", {1: "b", 9: "a"}) == {0: "a", 1: "b", 2: "b", 3: "b", 9: "a"}
    assert decide_values(answers, "choice") == {0: "a", 2: "b", 3: "b"}


def test_accuracy_on_gold_items() -> None:
    answers = read_answers(ann=[1, 2, 3, 4], bob=[None, CANNOT_JUDGE, None, None], cy=[None, None, None, 1])
    ann, bob, cy = measure_accuracy(answers, {0: 1, 1: 4, 2: 4, 9: 1}, "rating", tolerance=1)
    assert (ann.judged, ann.correct, ann.wrong, ann.share.value) == (3, 2, (1,), pytest.approx(2 / 3))
    assert ann.share.low == pytest.approx(0.208, abs=0.001)
    assert (bob.cannot_judge, bob.share.reason, cy.share.reason) == (1, Reason.NO_ANSWERS, Reason.NO_ANSWERS)


def test_items_without_marks_of_two_people_have_no_overlap() -> None:
    result = measure_span_agreement([Marks(1, "ann", ()), Marks(1, "bob", ((3, 3),)), Marks(2, "ann", ((1, 2),))])
    assert (result.items, result.overlap.reason) == (0, Reason.NO_MARKS)


def test_every_reason_has_a_text() -> None:
    assert set(TEXTS) == set(Reason)
    assert f" {MIN_INTERVAL_ITEMS} " in TEXTS[Reason.FEW_ITEMS] and f" {MIN_LABELLED} " in TEXTS[Reason.FEW_SAMPLES]
