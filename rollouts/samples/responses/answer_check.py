"""Compares the answer in the text of a response with the ground truth, whatever the reward function says.

Precision before recall: the result is unknown unless both can be compared with certainty.

- Numbers are compared by value: `40`, `40.0`, `$40`, `40 apples`, `40,000` and `40000`, `1/2`, `0.5`, `50%` and
  `\\frac{1}{2}`. After `=`, only what follows the last one counts. An answer that contains the expected number
  among others is not called different.
- A choice (`B`, `(b)`, `\\text{B}`) is compared by its letter.
- Plain words are compared without case, white space and punctuation. A text that contains the other is not different.
- Everything else (formulas, code, long texts) is unknown.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from rollouts.samples.record import Record
from rollouts.samples.responses import final_answer

ANSWER_END_CHARS: Final = 400  # at the end of the response, in which its answer is searched
MAX_COMPARED_CHARS: Final = 200
MAX_STORED_CHARS: Final = 80
MAX_DIGITS: Final = 30

LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d))")
LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
LATEX_SPACE = re.compile(r"\\[,;:! ]|\\left|\\right|\\quad|\\displaystyle|[{}$~]")
NUMBER = re.compile(
    r"(?<![\w.])([-+−]?)\s?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:\s?/\s?(\d+))?(?:\s?(\\?%))?(?![\w(])"
)
CHOICE = re.compile(r"\(?([A-Za-z])\)?[.:)]?")
WORDS = re.compile(r"[^\W\d_][^\W_]*(?:[ '’-][^\W_]+)*")
LIST = re.compile(r"\[\s*(?:'[^'\[\]]*'|\"[^\"\[\]]*\"|[^'\"\[\],]+)\s*\]")  # of one element: `['40']`


def extract_text_answer(response: str) -> str:
    """Returns the normalized last answer in the end of a response, empty if there is none.

    Ignores what the reward function logged. A `####` only counts in front of the end of the text: it also starts a
    Markdown heading.
    """
    end = response[-ANSWER_END_CHARS:]
    answer = final_answer.find_boxed_answer(end) if "\\" in end else ""
    if not answer and ("nswer" in end or "NSWER" in end):
        answer = final_answer.find_worded_answer(end)
    if not answer and "#" in end:
        _, marker, rest = end.rpartition("####")
        if not marker or "\n" in rest.strip():
            return ""
        answer = rest
    return final_answer.normalize_answer(answer) if answer else ""


def differs(answer: str, ground_truth: str) -> bool:
    """Returns True if the answer certainly is not the ground truth. `answer` is from `extract_text_answer`."""
    expected = read_ground_truth(ground_truth)
    return bool(answer and expected) and answer != expected and compare(answer, expected) is False


def read_ground_truth(text: str) -> str:
    """Returns the answer in a ground truth, normalized: `40`, `["40"]`, `#### 40`, a solution that ends in `#### 40` or
    `\\boxed{40}`. Empty if it is none: several lines, or long."""
    answer = final_answer.find_boxed_answer(text[-MAX_COMPARED_CHARS:])
    if not answer:
        *_, answer = text.rpartition("####")
    answer = answer.strip()
    if LIST.fullmatch(answer):
        answer = answer[1:-1].strip().strip("'\"")
    if len(answer) > MAX_COMPARED_CHARS or "\n" in answer:
        return ""
    return final_answer.normalize_answer(answer)


def compare(answer: str, expected: str) -> bool | None:
    """Returns whether two normalized answers are equal, None if that is not certain."""
    answer, expected = simplify_latex(answer), simplify_latex(expected)
    if answer.casefold() == expected.casefold():
        return True
    number = parse_only_number(expected)
    if number is not None:
        found = find_numbers(answer.rpartition("=")[2])
        return any(is_equal(value, number) for value in found) if found else None
    if choice := CHOICE.fullmatch(expected):
        return compare_choices(answer, choice[1])
    if WORDS.fullmatch(expected) and WORDS.fullmatch(answer):
        short, long = sorted((expected.casefold(), answer.casefold()), key=len)
        return None if short in long else False
    return None


def compare_choices(answer: str, letter: str) -> bool | None:
    """`letter` is one letter: also a variable, so only another single letter is different."""
    matched = CHOICE.fullmatch(answer)
    return matched[1].casefold() == letter.casefold() if matched else None


def simplify_latex(text: str) -> str:
    if "\\" not in text and "$" not in text and "{" not in text:
        return text
    text = LATEX_FRACTION.sub(lambda match: f"{match[1] or match[3]}/{match[2] or match[4]}", text)
    return " ".join(LATEX_SPACE.sub("", LATEX_TEXT.sub(r"\1", text)).split()).rstrip(".")


def find_numbers(text: str) -> list[Fraction]:
    """Returns the numbers in a text; none if it has digits that are no plain numbers, such as `2x` or `10^3`."""
    if re.search(r"[\\^_√*×·π]|\d[A-Za-z(]|[A-Za-z)]\d|\d\s?[-+:]\s?\d", text):
        return []
    return [read_number(match) for match in NUMBER.finditer(text) if len(match[0]) <= MAX_DIGITS]


def parse_only_number(text: str) -> Fraction | None:
    """Returns the number that a text is, with nothing else but its sign, `%` or a currency."""
    match = NUMBER.fullmatch(text.strip().lstrip("€£¥").strip())
    return read_number(match) if match and len(text) <= MAX_DIGITS else None


def read_number(match: re.Match[str]) -> Fraction:
    sign, digits, denominator, percent = match.groups()
    value = Fraction(digits.replace(",", ""))
    if denominator and int(denominator):
        value /= int(denominator)
    if percent:
        value /= 100
    return -value if sign in ("-", "−") else value


def is_equal(left: Fraction, right: Fraction) -> bool:
    """Numbers that differ in rounding, by a factor of 100 (a percentage) or in the sign's writing are equal enough."""
    if left == right or left == right * 100 or left * 100 == right:
        return True
    near = max(abs(left), abs(right)) / 1000
    return (left.denominator > 1 or right.denominator > 1) and abs(left - right) <= near


class AnswerChecker:
    """Checks the answers of a batch. Equal pairs of answer and ground truth are compared once."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], bool] = {}

    def check_records(self, records: Sequence[Record]) -> list[tuple[str, bool]]:
        """Returns for each record the answer in its text, and whether it differs from the ground truth."""
        return [self.check(record.response, record.ground_truth) for record in records]

    def check(self, response: str, ground_truth: str | None) -> tuple[str, bool]:
        answer = extract_text_answer(response)
        if not answer or not ground_truth:
            return answer[:MAX_STORED_CHARS], False
        pair = (answer, ground_truth)
        known = self.known.get(pair)
        if known is None:
            known = self.known[pair] = differs(*pair)
        return answer[:MAX_STORED_CHARS], known
