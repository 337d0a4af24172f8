"""CURE: a coder writes programs, a tester writes tests, and every program is run against every test.

| file                                 | holds, in a JSON array                                                        |
|--------------------------------------|-------------------------------------------------------------------------------|
| `outputs-rl-{model}-{data set}.json` | a task each: k programs, k tests; after `execute.py` a table of k x (t+k) too |
| `outputs-eval-…`                     | the same of an evaluation, its table in two halves                            |
| `rl_{code,case}_data.json`,          | {prompt, response, reward} of the groups with variance; the reward is the     |
| `rl_data.json`                       | normalised advantage, and `<|im_end|>` stands after what was not cut          |

t tests are the data set's own, k are the tester's. A program's score is the share of the t that it passes, as
`reward.py` has it; a test's is +(share of wrong programs it catches) where all correct ones pass it, else -(share of
wrong ones that pass it), and unknown where no program is correct. A file that `execute.py` has not seen has no table.
None says a step. Source: sample.py, execute.py, reward.py of Gen-Verse/CURE 69fe174.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import json_document
from rollouts.formats.readers.jsonl import BROKEN_UTF8
from rollouts.samples import LineProblem, Record, describe_json_type, to_float, to_integer, to_json

END = "<|im_end|>"
OUTPUTS = re.compile(r"outputs-(?:rl|eval)-.+-(?P<data>[^-/]+)\.json\Z")
DATA = re.compile(r"rl_(?:(?P<role>code|case)_)?data\.json\Z")
OUTPUT_HEAD = re.compile(rb'\s*\[\s*\{.*"full_code_generation"\s*:', re.DOTALL)
DATA_HEAD = re.compile(rb'\s*\[\s*\{\s*"prompt"\s*:.*"response"\s*:', re.DOTALL)
ROLES = {"code": "coder", "case": "tester"}

MOST_TOLD = 1000  # characters of a test's input or output; the ground truth and the tester's own sample have all
Table = list[list[bool]]
Task = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CureFormat:
    name: str

    def sniff(self, filename: str, head: bytes) -> bool:
        name = filename.rpartition("/")[2]
        if self.name == "cure-outputs":
            return bool(OUTPUT_HEAD.match(head) or (OUTPUTS.match(name) and head.lstrip().startswith(b"[")))
        return bool(DATA.match(name) and DATA_HEAD.match(head))

    def read(self, stream: BinaryIO, told: DumpContext) -> Iterator[Record | LineProblem]:
        """Records in the order of the array. Raises UnreadableDump."""
        found, whole = json_document.read_json_document(stream)
        if not isinstance(found, list):
            raise UnreadableDumpError(f"It holds {describe_json_type(found)} where a list is expected.")
        if not whole:
            yield LineProblem(1, BROKEN_UTF8, repaired=True)
        bad: list[LineProblem] = []
        for place, one in enumerate(found, 1):
            try:
                yield from samples(one, told) if self.name == "cure-outputs" else [trained(one, told)]
            except ValueError as error:
                bad.append(LineProblem(place, f"entry {place} of the list {error}"))
        if found and len(bad) == len(found):
            raise UnreadableDumpError(f"None of it can be read: {bad[0].reason}.")
        yield from bad


FORMATS = (CureFormat("cure-outputs"), CureFormat("cure-data"))


def trained(one: Any, told: DumpContext) -> Record:
    """What a trainer was given. Raises ValueError."""
    if not isinstance(one, dict) or not isinstance(one.get("prompt"), str) or not isinstance(one.get("response"), str):
        raise ValueError("has no `prompt` and `response`")
    ended, advantage = one["response"].endswith(END), to_float(one.get("reward"))
    made = Record(one["prompt"], one["response"].removesuffix(END), truncated=not ended)
    made.advantages = None if advantage is None else [advantage]
    named = DATA.match(told.filename.rpartition("/")[2])
    made.extras = {key: value for key, value in one.items() if key not in ("prompt", "response", "reward")}
    if named and named["role"]:
        made.extras["role"] = ROLES[named["role"]]
    return made


def samples(task: Any, told: DumpContext) -> Iterator[Record]:
    """The programs of a task, then its tests. Raises ValueError."""
    if not isinstance(task, dict):
        raise ValueError(f"is {describe_json_type(task)} where a task is expected")
    named = OUTPUTS.match(told.filename.rpartition("/")[2])
    matrix = Matrix.of(task)
    made = [*coders(task, matrix), *testers(task, matrix)]
    for record in made:
        record.data_source = named["data"] if named else None
        record.extras["task"] = hashlib.sha256(str(task.get("question")).encode("utf-8", "replace")).hexdigest()[:12]
        record.extras |= {key: value for key, value in task.items() if key not in TOLD}
    yield from made


# Keys of a task that are said of its samples one by one, or in another way.
TOLD = frozenset(
    ("full_code_generation", "code_response_length", "full_case_generation", "case_response_length", "generated_code",
     "num_ground_truth_test", "all_case_input", "all_case_output", "case_input", "case_output", "case_text",
     "code_generation_prompt", "case_generation_prompt", "all_case_exe_results", "all_case_bool_table", "test_input",
     "test_output", "case_bool_table", "case_exe_results", "test_bool_table", "test_exe_results")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrix:
    """Which program passes which test: `passed[program][test]`, of the `given` first tests the answers are known."""

    passed: Table
    printed: list[list[Any]]
    given: int
    cases: list[dict[str, str]]  # the tests, each cut to `MOST_TOLD`: they stand with every program
    truth: str | None

    @classmethod
    def of(cls, task: Task) -> Matrix | None:
        """None before the programs were run, or where there was nothing to run. Raises ValueError."""
        table, printed = task.get("all_case_bool_table"), task.get("all_case_exe_results")
        inputs, outputs = texts(task, "all_case_input"), texts(task, "all_case_output")
        given = to_integer(task.get("num_ground_truth_test")) or 0
        if table is None and isinstance(task.get("test_bool_table"), list):
            table, printed = joined(task, "bool_table"), joined(task, "exe_results")
            inputs = texts(task, "test_input") + texts(task, "case_input")
            outputs = texts(task, "test_output") + texts(task, "case_output")
            given = len(task["test_bool_table"][0]) if task["test_bool_table"] else 0
        if not table:
            return None
        if not is_table(table):
            raise ValueError("has an `all_case_bool_table` that is no table of true and false")
        tests = [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=False)]
        cases = [{key: text[:MOST_TOLD] for key, text in test.items()} for test in tests]
        given = max(0, min(given, len(table[0])))
        truth = to_json(tests[:given]) if given else None
        return cls(table, printed if isinstance(printed, list) else [], given, cases, truth)

    @property
    def correct(self) -> list[bool]:
        """Which programs pass all the given tests."""
        return [all(row[: self.given]) for row in self.passed]


def is_table(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(row, list) for row in value)
    return rows and len({len(row) for row in value}) == 1 and all(isinstance(one, bool) for row in value for one in row)


def joined(task: Task, what: str) -> Any:
    """The two halves of an evaluation's table as one: the given tests, then those of the tester."""
    given, own = rows_of(task, f"test_{what}"), rows_of(task, f"case_{what}")
    return [[*one, *other] for one, other in zip(given, own or [[]] * len(given), strict=False)]


def rows_of(task: Task, key: str) -> list[list[Any]]:
    """A list of lists; empty where there is none. Raises ValueError where it is anything else."""
    value = task.get(key) or []
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise ValueError(f"has a `{key}` that is no list of lists")
    return value


def texts(task: Task, key: str) -> list[str]:
    """A list of texts. Raises ValueError where it is anything else."""
    value = task.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"has a `{key}` that is {describe_json_type(value)} where a list is expected")
    return [one if isinstance(one, str) else to_json(one) for one in value]


def lengths(task: Task, key: str) -> Sequence[Any]:
    value = task.get(key)
    return value if isinstance(value, list) else ()


def coders(task: Task, matrix: Matrix | None) -> Iterator[Record]:
    prompt, long = str(task.get("code_generation_prompt", "")), lengths(task, "code_response_length")
    programs = texts(task, "generated_code")
    for place, response in enumerate(texts(task, "full_code_generation")):
        made = Record(prompt, response, index=place, extras={"role": "coder"})
        if place < len(long):
            made.extras["response_length"] = long[place]
        if place < len(programs):
            made.extras["generated_code"] = programs[place]
        if matrix and place < len(matrix.passed):
            run(made, matrix, place)
        yield made


def run(made: Record, matrix: Matrix, place: int) -> None:
    """What came of a program when it was run."""
    row, given = matrix.passed[place], matrix.given
    made.extras["tests"] = {"passed": row, "given": given, "cases": matrix.cases}
    if place < len(matrix.printed):
        made.extras["tests"]["printed"] = matrix.printed[place]
    if given:
        made.score = sum(row[:given]) / given
        made.rewards["acc"] = float(all(row[:given]))
        made.ground_truth = matrix.truth


def testers(task: Task, matrix: Matrix | None) -> Iterator[Record]:
    prompt, long = str(task.get("case_generation_prompt", "")), lengths(task, "case_response_length")
    parts = {key: texts(task, key) for key in ("case_input", "case_output", "case_text")}
    for place, response in enumerate(texts(task, "full_case_generation")):
        made = Record(prompt, response, index=place, extras={"role": "tester"})
        if place < len(long):
            made.extras["response_length"] = long[place]
        made.extras |= {key: values[place] for key, values in parts.items() if place < len(values)}
        at = place + matrix.given if matrix else 0
        if matrix and at < len(matrix.passed[0]):
            made.extras["passed_by"] = [row[at] for row in matrix.passed]
            judge(made, made.extras["passed_by"], matrix.correct)
        yield made


def judge(made: Record, passed: list[bool], correct: list[bool]) -> None:
    """The reward of a test before it is normalised; none where no program is correct, so that nobody can tell."""
    if not any(correct):
        return
    valid = all(one for one, right in zip(passed, correct, strict=True) if right)
    wrong = [one for one, right in zip(passed, correct, strict=True) if not right]
    told = [not one if valid else one for one in wrong]
    made.rewards["acc"] = float(valid)
    share = sum(told) / len(told) if told else 1.0
    made.score = share if valid else 0.0 - share
