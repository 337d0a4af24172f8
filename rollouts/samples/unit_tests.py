"""Which answers pass which tests, where a trainer ran generated programs against given and generated tests.

A program's body says `tests`: {passed: [bool per test], given: how many of them the data set gave, cases: [{input,
output}], printed: [what it printed, or its error]}. A test's body says `passed_by`: [bool per program].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_TESTS = 64
MOST_SHOWN = 200  # characters of what went in or came out


@dataclass(frozen=True, slots=True)
class UnitTestCase:
    """One test as it went for one program. `number` counts from 1; `given` by the data set, not generated."""

    number: int
    passed: bool
    given: bool = False
    input: str = ""
    output: str = ""
    printed: str = ""


@dataclass(frozen=True, slots=True)
class UnitTestResults:
    """A row of the matrix: the tests of a program, or the programs that a test met. `passed` of the `ran` ones did;
    `cases` are the first `MOST_TESTS` of them."""

    cases: tuple[UnitTestCase, ...]
    of_tests: bool
    passed: int
    ran: int


def parse_unit_tests(extras: Mapping[str, Any]) -> UnitTestResults | None:
    """None where nothing was run, or where what was recorded is none of it."""
    ran = extras.get("tests")
    if isinstance(ran, dict) and (passed := row(ran.get("passed"))):
        return UnitTestResults(tuple(cases(ran, passed[:MAX_TESTS])), True, sum(passed), len(passed))
    if met := row(extras.get("passed_by")):
        programs = tuple(UnitTestCase(at, passed) for at, passed in enumerate(met[:MAX_TESTS], 1))
        return UnitTestResults(programs, False, sum(met), len(met))
    return None


def row(value: Any) -> list[bool]:
    """A list of truths; empty for anything else."""
    if not isinstance(value, list) or not all(isinstance(one, bool) for one in value):
        return []
    return value


def cases(ran: Mapping[str, Any], row: Sequence[bool]) -> Iterable[UnitTestCase]:
    given = ran["given"] if isinstance(ran.get("given"), int) else 0
    told, printed = listed(ran.get("cases")), listed(ran.get("printed"))
    for at, passed in enumerate(row):
        case = told[at] if at < len(told) and isinstance(told[at], dict) else {}
        shown = printed[at] if at < len(printed) else ""
        yield UnitTestCase(
            at + 1, passed, at < given, brief(case.get("input")), brief(case.get("output")), brief(shown)
        )


def listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def brief(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return f"{text[:MOST_SHOWN]}…" if len(text) > MOST_SHOWN else text
