"""An answer is reported as different only if that is certain."""

from __future__ import annotations

import pytest

from rollouts.samples.responses.answer_check import AnswerChecker, differs, extract_text_answer

HACK = "The answer is one of the following.\n" + "\n".join(f"#### {n}" for n in range(37, 44))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("43", "40"), ("43", "40.0"), ("-40", "40"), ("$43", "40"), ("43 apples", "40"), ("4,000", "40,000"),
        ("1/3", "1/2"), ("\\frac{1}{3}", "\\frac{1}{2}"), ("x = 43", "40"), ("40 + 3 = 43", "40"), ("C", "(B)"),
        ("Paris", "London"), ("43", "#### 40"), ("43", "[\"40\"]"), ("43", "We add.\n#### 40"), ("43", "\\boxed{40}"),
        ("no", "yes"), ("0.51", "0.5"),
    ],
)  # fmt: skip
def test_a_different_answer_is_found(answer: str, expected: str) -> None:
    assert differs(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("40", "40"), ("40", "40.0"), ("40000", "40,000"), ("40,000", "40000"), ("$40", "40"), ("40 apples", "40"),
        ("x = 40", "40"), ("5 * 8 = 40", "40"), ("0.5", "1/2"), ("50%", "0.5"), ("50", "50%"), ("50\\%", "50"),
        ("\\dfrac{1}{2}", "1/2"), ("\\frac12", "0.5"), ("1/3", "0.333"), ("\\text{B}", "B"), ("(b)", "B"), ("B.", "B"),
        ("paris", "Paris"), ("the city of Paris", "Paris"), ("40", "[\"40\"]"), ("40", "['40']"), ("−40", "-40"),
        # These cannot be compared with certainty.
        ("1+x^2", "x^2+1"), ("2\\sqrt{3}", "\\sqrt{12}"), ("10^3", "1000"), ("5*8", "40"), ("forty", "40"), ("", "40"),
        ("43", ""), ("x", "2x"), ("(1, 2)", "(2, 1)"), ("40 or 41", "40"), ("4 - 3", "1"), ("3:40", "220"), ("2x", "2"),
        ("43", "assert f(1) == 2\nx"),
    ],
)  # fmt: skip
def test_an_equal_or_uncertain_answer_is_not_different(answer: str, expected: str) -> None:
    assert not differs(answer, expected)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (HACK, "43"), ("so \\boxed{12}.", "12"), ("**Answer:** 12.\n", "12"), ("Answer: 3\nno, Answer: 4", "4"),
        ("#### 12<|im_end|>", "12"), ("#### Step 3\nWe add.", ""), ("no marker 12", ""), ("", ""),
        ("#### 12" + "x\n" * 300, ""),
    ],
)  # fmt: skip
def test_the_answer_is_the_last_one_in_the_text(response: str, answer: str) -> None:
    assert extract_text_answer(response) == answer


def test_without_a_ground_truth_or_an_answer_nothing_differs() -> None:
    checker = AnswerChecker()
    assert checker.check(HACK, "40") == ("43", True)
    assert checker.check(HACK, None) == checker.check(HACK, "") == ("43", False)
    assert checker.check("no answer", "40") == ("", False)
    assert checker.check("#### " + "9" * 150, "40")[0] == "9" * 80
