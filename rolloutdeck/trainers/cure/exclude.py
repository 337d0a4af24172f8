"""Files of CURE without the answers that are flagged: JSON that we write, as CURE writes it.

A row that is trained on goes alone: its reward is its advantage already. Of the outputs a program goes with its row of
the table, and a test with its column, so that reward.py normalises what is left. Rows are counted as the server reads
them: of a task first its programs, then its tests (reward.py:117-176 has the same order).
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
RUN = ("all_case_input", "all_case_output")  # the data set's own tests first, then the tester's
TABLES = ("all_case_exe_results", "all_case_bool_table")  # a row per program, in it a cell per test
GIVEN = "num_ground_truth_test"

Task = dict[str, Any]


def write_without_answers(name: str, source: Path, target: Path, flagged: Collection[int]) -> str:
    """Writes `target` as `source` without these answers; what was done, as the end of a sentence. Raises
    NotReplayableError."""
    try:
        found = load_json_objects(source)
        made, said = (outputs if OUTPUTS_FILE.match(name) else rows)(found, set(flagged))
        target.write_text(json.dumps(made, indent=2, ensure_ascii=False), encoding="utf-8")
    except (ValueError, LookupError, TypeError) as error:  # a task without one of CURE's lists, or with another value
        raise NotReplayableError(f"{name} can't be written without its flagged answers: {error}") from error
    return f"is replayed without {said}. The file is written by Rolloutdeck."


def rows(found: list[Task], flagged: set[int]) -> tuple[list[Task], str]:
    kept = [row for place, row in enumerate(found) if place not in flagged]
    if len(kept) + len(flagged) != len(found):
        raise ValueError(f"it has {len(found)} rows, and row {max(flagged)} is flagged")
    if not kept:
        raise ValueError("all its rows are flagged, nothing would be left to train on")
    what = f"{len(flagged)} of its {len(found)} rows, which {'is' if len(flagged) == 1 else 'are'} flagged"
    return kept, f"{what}; the rewards of the others were normalised with {'it' if len(flagged) == 1 else 'them'}"


def outputs(found: list[Task], flagged: set[int]) -> tuple[list[Task], str]:
    made, place, gone = [], 0, [0, 0]
    for task in found:
        if not all(isinstance(task[name], list) for name in (PROGRAMS[0], TESTS[0])):
            raise ValueError("a task's answers are no list")
        programs, tests = len(task[PROGRAMS[0]]), len(task[TESTS[0]])
        no_program = {at for at in range(programs) if place + at in flagged}
        no_test = {at for at in range(tests) if place + programs + at in flagged}
        made.append(smaller(task, no_program, no_test) if no_program or no_test else task)
        gone = [gone[0] + len(no_program), gone[1] + len(no_test)]
        place += programs + tests
    if sum(gone) != len(flagged):
        raise ValueError(f"it has {place} answers, and answer {max(flagged)} is flagged")
    return [task for task in made if task[PROGRAMS[0]]], _said(*gone)


def _said(programs: int, tests: int) -> str:
    counted = ((programs, "program"), (tests, "test"))
    return " and ".join(f"{count} flagged {noun}{'s' if count > 1 else ''}" for count, noun in counted if count)


def smaller(task: Task, no_program: set[int], no_test: set[int]) -> Task:
    """A task without these programs and tests."""
    given = task.get(GIVEN) or 0
    run = {given + at for at in no_test}
    made = dict(task)
    for names, places in ((PROGRAMS, no_program), (TESTS, no_test), (RUN, run)):
        made |= {name: without(task[name], places) for name in names if isinstance(task.get(name), list)}
    for name in TABLES:
        if isinstance(task.get(name), list):
            made[name] = [without(row, run) for row in without(task[name], no_program)]
    return made


def without(values: list[Any], places: set[int]) -> list[Any]:
    return [value for at, value in enumerate(values) if at not in places]
