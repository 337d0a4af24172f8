"""Parses unit test results, for trainers that run generated programs against given and generated tests.

The body of a program has `tests`: {passed: [bool per test], given: number of tests from the data set, cases: [{input,
output}], printed: [output or error of the program]}. The body of a test has `passed_by`: [bool per program].
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_TESTS = 64
MAX_TEXT_CHARS = 200  # of an input or output


@dataclass(frozen=True, slots=True)
class UnitTestCase:
    """The result of one test for one program. `number` counts from 1. `given`: from the data set, not generated."""

    number: int
    passed: bool
    given: bool = False
    input: str = ""
    output: str = ""
    printed: str = ""


@dataclass(frozen=True, slots=True)
class UnitTestResults:
    """One row of the test matrix: the tests of a program (`is_program`), or the programs that a test was run on.
    `passed` of `total` passed; `cases` are the first `MAX_TESTS` of them."""

    cases: tuple[UnitTestCase, ...]
    is_program: bool
    passed: int
    total: int


def parse_unit_tests(extras: Mapping[str, Any]) -> UnitTestResults | None:
    """Returns None if nothing was run or the recorded value has another form."""
    tests = extras.get("tests")
    if isinstance(tests, dict) and (passed := to_booleans(tests.get("passed"))):
        return UnitTestResults(tuple(build_cases(tests, passed[:MAX_TESTS])), True, sum(passed), len(passed))
    if passed_by := to_booleans(extras.get("passed_by")):
        programs = tuple(UnitTestCase(number, passed) for number, passed in enumerate(passed_by[:MAX_TESTS], 1))
        return UnitTestResults(programs, False, sum(passed_by), len(passed_by))
    return None


def to_booleans(value: Any) -> list[bool]:
    """Returns a list of booleans; an empty list for any other value."""
    return value if isinstance(value, list) and all(isinstance(item, bool) for item in value) else []


def build_cases(tests: Mapping[str, Any], results: Sequence[bool]) -> Iterable[UnitTestCase]:
    given = tests["given"] if isinstance(tests.get("given"), int) else 0
    cases, printed = to_sequence(tests.get("cases")), to_sequence(tests.get("printed"))
    for index, passed in enumerate(results):
        case = cases[index] if index < len(cases) and isinstance(cases[index], dict) else {}
        output = printed[index] if index < len(printed) else ""
        texts = map(shorten, (case.get("input"), case.get("output"), output))
        yield UnitTestCase(index + 1, passed, index < given, *texts)


def to_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def shorten(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return f"{text[:MAX_TEXT_CHARS]}…" if len(text) > MAX_TEXT_CHARS else text
