"""Writes files of CURE without the selected answers, as JSON in CURE's format.

A row that is trained on is excluded alone: its reward already is its advantage. In the outputs, a program is excluded
with its row of the tables, and a test with its column, so that reward.py normalises the remaining answers. Rows are
counted as the server reads them: of each task first its programs, then its tests (reward.py:117-176 has the same
order).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.cure import OUTPUTS_FILE
from rolloutdeck.trainers.cure.step_files import load_json_objects

PROGRAMS = ("full_code_generation", "code_response_length", "generated_code")
TESTS = ("full_case_generation", "case_response_length", "case_input", "case_output", "case_text")
TEST_RUNS = ("all_case_input", "all_case_output")  # the tests of the data set first, then the generated ones
RESULT_TABLES = ("all_case_exe_results", "all_case_bool_table")  # one row per program, one column per test
GIVEN_TESTS = "num_ground_truth_test"

Task = dict[str, Any]


def write_without_answers(name: str, source: Path, target: Path, selected: Collection[int], word: str) -> str:
    """Writes `target` as `source` without the `selected` answers. Returns a description, the end of a sentence.

    `word`: what a selected answer is called. Raises NotReplayableError.
    """
    try:
        tasks = load_json_objects(source)
        exclude = exclude_outputs if OUTPUTS_FILE.match(name) else exclude_rows
        remaining, description = exclude(tasks, set(selected), word)
        target.write_text(json.dumps(remaining, indent=2, ensure_ascii=False), encoding="utf-8")
    except (ValueError, LookupError, TypeError) as error:  # a task without one of CURE's lists, or with another value
        raise NotReplayableError(f"{name} can't be written without its {word} answers: {error}") from error
    return f"is replayed without {description}. The file is written by Rolloutdeck."


def exclude_rows(all_rows: list[Task], selected: set[int], word: str) -> tuple[list[Task], str]:
    """Returns the other rows, and a description. Raises ValueError if none is left, or if a selected one is missing."""
    remaining = [row for index, row in enumerate(all_rows) if index not in selected]
    if len(remaining) + len(selected) != len(all_rows):
        raise ValueError(f"it has {len(all_rows)} rows, and row {max(selected)} is {word}")
    if not remaining:
        raise ValueError(f"all its rows are {word}, so nothing is left to train on")
    verb, pronoun = ("is", "it") if len(selected) == 1 else ("are", "them")
    description = f"{len(selected)} of its {len(all_rows)} rows, which {verb} {word}"
    return remaining, f"{description}; the rewards of the others were normalised with {pronoun}"


def exclude_outputs(tasks: list[Task], selected: set[int], word: str) -> tuple[list[Task], str]:
    """Returns the tasks without the selected answers, and a description. Raises ValueError if one is missing."""
    remaining, first_answer, excluded = [], 0, [0, 0]
    for task in tasks:
        if not all(isinstance(task[name], list) for name in (PROGRAMS[0], TESTS[0])):
            raise ValueError("the answers of a task are not a list")
        programs, tests = len(task[PROGRAMS[0]]), len(task[TESTS[0]])
        no_program = {index for index in range(programs) if first_answer + index in selected}
        no_test = {index for index in range(tests) if first_answer + programs + index in selected}
        remaining.append(remove_answers(task, no_program, no_test) if no_program or no_test else task)
        excluded = [excluded[0] + len(no_program), excluded[1] + len(no_test)]
        first_answer += programs + tests
    if sum(excluded) != len(selected):
        raise ValueError(f"it has {first_answer} answers, and answer {max(selected)} is {word}")
    return [task for task in remaining if task[PROGRAMS[0]]], _describe_excluded(word, *excluded)


def _describe_excluded(word: str, programs: int, tests: int) -> str:
    counted = ((programs, "program"), (tests, "test"))
    return " and ".join(f"{count} {word} {noun}{'s' if count > 1 else ''}" for count, noun in counted if count)


def remove_answers(task: Task, no_program: set[int], no_test: set[int]) -> Task:
    """Returns the task without the programs and tests with these indices."""
    given_tests = task.get(GIVEN_TESTS) or 0
    run_indices = {given_tests + index for index in no_test}
    result = dict(task)
    for names, indices in ((PROGRAMS, no_program), (TESTS, no_test), (TEST_RUNS, run_indices)):
        result |= {name: remove_items(task[name], indices) for name in names if isinstance(task.get(name), list)}
    for name in RESULT_TABLES:
        if isinstance(task.get(name), list):
            result[name] = [remove_items(row, run_indices) for row in remove_items(task[name], no_program)]
    return result


def remove_items(values: list[Any], indices: set[int]) -> list[Any]:
    return [value for index, value in enumerate(values) if index not in indices]
