"""Tests passed by each response: the matrix of a group, and the tests of one response."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import Run, Sample
from rollouts.samples.responses.unit_tests import parse_unit_tests
from tests.rollouts.real_dumps import DUMPS
from tests.rollouts.support.push import index_file, lines

TRAP = "</pre><script>alert(1)</script>"
REAL = DUMPS / "cure/step0/temp_data/outputs-rl-Qwen.Qwen2.5-7B-Instruct-CodeContests.json"


def get_page(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return answer.content.decode()


def get_group_page(client: Client, sample: Sample) -> str:
    step = sample.step
    return get_page(client, reverse("group", args=[step.run.uid, step.step, sample.group]))


def read_verdicts(html: str) -> list[str]:
    """Each row of the matrix, `+` for a test that was passed, `.` for one that was not run."""
    table = html[html.index('<table class="tests">') : html.index("</table>", html.index('<table class="tests">'))]
    rows = table.split("<tr>")[2:]
    return [
        "".join(
            {"good": "+", "bad": "-"}.get(result, ".") for result in re.findall(r'<td class="(good|bad|muted)"', row)
        )
        for row in rows
    ]


def test_the_board_of_programs_shows_the_table_of_programs_and_tests(reader: Client, run: Run) -> None:
    index_file(run, REAL.read_bytes(), 0, source=REAL.name)
    html = get_group_page(reader, Sample.objects.get(ordinal=0))
    assert read_verdicts(html) == ["---+-+-+-", "+++++++++", "+++++++++", "---------"]
    assert html.count('class="given"') == 5
    assert "The first 5 are from the dataset" in html


def test_the_board_of_tests_shows_which_programs_pass_each_test(reader: Client, run: Run) -> None:
    index_file(run, REAL.read_bytes(), 0, source=REAL.name)
    html = get_group_page(reader, Sample.objects.get(ordinal=4))
    assert read_verdicts(html) == ["+++-", "-++-", "+++-", "-++-"]
    assert "each column is a program tested with it" in html


def test_a_program_lists_its_tests_with_what_it_printed(reader: Client, run: Run) -> None:
    index_file(run, REAL.read_bytes(), 0, source=REAL.name)
    html = get_page(reader, f"/samples/{Sample.objects.get(ordinal=0).pk}/")
    assert "3 of 9 passed" in html
    assert "-12 16" in html and "<pre>28\n</pre>" in html


def test_a_test_lists_the_programs_that_pass_it(reader: Client, run: Run) -> None:
    index_file(run, REAL.read_bytes(), 0, source=REAL.name)
    html = get_page(reader, f"/samples/{Sample.objects.get(ordinal=4).pk}/")
    assert html.count("program 1 passes") == 1 and html.count("program 4 fails") == 1


def test_responses_without_tests_show_no_matrix(reader: Client, run: Run) -> None:
    index_file(run, lines({"prompt": "q", "response": "a", "group": "g", "index": 0}), 1)
    assert 'class="tests' not in get_group_page(reader, Sample.objects.get())


def test_a_response_that_was_run_with_fewer_tests_stays_in_the_matrix(reader: Client, run: Run) -> None:
    results = ([True, False, True], [False])
    values = [
        {"prompt": "q", "response": f"{index}", "group": "g", "index": index, "tests": {"passed": passed}}
        for index, passed in enumerate(results)
    ]
    index_file(run, lines(*values), 1)
    html = get_group_page(reader, Sample.objects.earliest("ordinal"))
    assert read_verdicts(html) == ["+-+", "-.."]
    assert "Not all responses were run with the same number of tests" in html and "0 / 1" in html


def test_programs_and_tests_of_one_group_have_a_matrix_each(reader: Client, run: Run) -> None:
    program = {"prompt": "q", "response": "a", "group": "g", "index": 0, "tests": {"passed": [True, False]}}
    test = {"prompt": "q", "response": "b", "group": "g", "index": 1, "passed_by": [True]}
    index_file(run, lines(program, test), 1)
    html = get_group_page(reader, Sample.objects.earliest("ordinal"))
    assert html.count('<table class="tests">') == 2


def test_more_tests_than_are_shown_are_counted(reader: Client, run: Run) -> None:
    index_file(
        run, lines({"prompt": "q", "response": "a", "group": "g", "tests": {"passed": [True] * 99 + [False]}}), 1
    )
    sample = Sample.objects.get()
    assert "99 of 100 passed" in get_page(reader, f"/samples/{sample.pk}/")
    html = get_group_page(reader, sample)
    assert "99 / 100" in html and "Showing the first 64 of 100." in html


def test_hostile_tests_are_shown_as_text(reader: Client, run: Run) -> None:
    tests = {"passed": [True, False], "given": 1, "cases": [{"input": TRAP, "output": TRAP}], "printed": [TRAP * 1000]}
    index_file(run, lines({"prompt": "q", "response": "a", "group": "g", "index": 0, "tests": tests}), 1)
    sample = Sample.objects.get()
    for html in (get_group_page(reader, sample), get_page(reader, f"/samples/{sample.pk}/")):
        assert "<script>alert" not in html and 'class="tests' in html


@pytest.mark.parametrize(
    "extras",
    [
        {}, {"tests": 3}, {"tests": {"passed": "yes"}}, {"tests": {"passed": [1, 0]}}, {"passed_by": []},
        {"tests": {"passed": []}}, {"passed_by": [None]},
    ],
)  # fmt: skip
def test_extras_without_valid_tests_have_no_unit_tests(extras: dict[str, Any]) -> None:
    assert parse_unit_tests(extras) is None


def test_a_row_with_invalid_parts_is_shown_without_them() -> None:
    result = parse_unit_tests({"tests": {"passed": [True, False], "given": "two", "cases": [7], "printed": None}})
    assert result is not None and [case.passed for case in result.cases] == [True, False]
    assert (result.passed, any(case.given for case in result.cases), result.cases[0].input) == (1, False, "")
