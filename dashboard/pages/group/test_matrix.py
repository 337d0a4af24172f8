"""The matrix of responses and tests on a group board."""

from __future__ import annotations

from dataclasses import dataclass

from rollouts.models import Sample
from rollouts.prompts import GroupResponse
from rollouts.samples import UnitTestCase, UnitTestResults


@dataclass(frozen=True, slots=True)
class UnitTestRow:
    """`cells` is as wide as the widest row; None where this response was not run with the test of that number."""

    sample: Sample
    ran: UnitTestResults
    cells: list[UnitTestCase | None]


@dataclass(frozen=True, slots=True)
class UnitTestMatrix:
    """`head` is the widest row's cases. `of_tests`: a column is a test that programs met, else a program that met
    tests."""

    head: tuple[UnitTestCase, ...]
    of_tests: bool
    rows: list[UnitTestRow]

    @property
    def given(self) -> int:
        return sum(case.given for case in self.head)

    @property
    def ran(self) -> int:
        return max(row.ran.total for row in self.rows)

    @property
    def ragged(self) -> bool:
        return any(None in row.cells for row in self.rows)


def build_unit_test_matrices(responses: list[GroupResponse]) -> list[UnitTestMatrix]:
    """Those of programs and of tests, where the group has some, with all responses that were run, in the trainer's
    order."""
    ordered = sorted(responses, key=lambda one: (one.sample.index is None, one.sample.index or 0, one.sample.ordinal))
    ran = [(one.sample, one.unit_tests) for one in ordered if one.unit_tests]
    kinds = [[(sample, told) for sample, told in ran if told.is_program is kind] for kind in (True, False)]
    return [build_unit_test_matrix(rows) for rows in kinds if rows]


def build_unit_test_matrix(ran: list[tuple[Sample, UnitTestResults]]) -> UnitTestMatrix:
    head = max((told.cases for _sample, told in ran), key=len)
    rows = [UnitTestRow(sample, told, [*told.cases, *[None] * (len(head) - len(told.cases))]) for sample, told in ran]
    return UnitTestMatrix(head, ran[0][1].is_program, rows)
