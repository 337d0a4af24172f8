"""CURE: a coder writes programs, a tester writes tests, and every program is run against every test.

| file                                 | holds, in a JSON array                                                        |
|--------------------------------------|-------------------------------------------------------------------------------|
| `outputs-rl-{model}-{data set}.json` | tasks: k programs, k tests; after `execute.py` also a table of k x (t+k)      |
| `outputs-eval-…`                     | the same for an evaluation; its table is in two halves                        |
| `rl_{code,case}_data.json`,          | {prompt, response, reward} of the groups with variance; the reward is the     |
| `rl_data.json`                       | normalized advantage; `<|im_end|>` ends a response that was not truncated     |

t tests are from the data set, k are from the tester. The score of a program is the share of the t tests that it passes,
as in `reward.py`. The score of a test is +(share of wrong programs that fail it) if all correct programs pass it, else
-(share of wrong programs that pass it), and unknown if no program is correct. A file has no table before `execute.py`
ran. No file has a step. Source: sample.py, execute.py, reward.py of Gen-Verse/CURE 69fe174.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import BROKEN_UTF8, JsonObject, get_list, read_json_document
from rollouts.samples import LineProblem, Record, describe_json_type, to_float, to_integer, to_json

END = "<|im_end|>"
OUTPUTS = re.compile(r"outputs-(?:rl|eval)-.+-(?P<data>[^-/]+)\.json\Z")
DATA = re.compile(r"rl_(?:(?P<role>code|case)_)?data\.json\Z")
OUTPUT_HEAD = re.compile(rb'\s*\[\s*\{.*"full_code_generation"\s*:', re.DOTALL)
DATA_HEAD = re.compile(rb'\s*\[\s*\{\s*"prompt"\s*:.*"response"\s*:', re.DOTALL)
ROLES = {"code": "coder", "case": "tester"}

MAX_CASE_CHARS = 1000  # of a test input or output; the ground truth and the tester's sample have the full text
Table = list[list[bool]]


@dataclass(frozen=True, slots=True)
class CureFormat:
    name: str

    def sniff(self, filename: str, head: bytes) -> bool:
        name = filename.rpartition("/")[2]
        if self.name == "cure-outputs":
            return bool(OUTPUT_HEAD.match(head) or (OUTPUTS.match(name) and head.lstrip().startswith(b"[")))
        return bool(DATA.match(name) and DATA_HEAD.match(head))

    def read(self, stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
        entries, is_utf8 = read_json_document(stream)
        if not isinstance(entries, list):
            raise UnreadableDumpError(f"It holds {describe_json_type(entries)} where a list is expected.")
        if not is_utf8:
            yield LineProblem(1, BROKEN_UTF8, repaired=True)
        build = build_samples if self.name == "cure-outputs" else build_trained_sample
        problems: list[LineProblem] = []
        for number, entry in enumerate(entries, 1):
            try:
                yield from build(entry, context)
            except ValueError as error:
                problems.append(LineProblem(number, f"entry {number} of the list {error}"))
        if entries and len(problems) == len(entries):
            raise UnreadableDumpError(f"None of it can be read: {problems[0].reason}.")
        yield from problems


FORMATS = (CureFormat("cure-outputs"), CureFormat("cure-data"))


def build_trained_sample(entry: Any, context: DumpContext) -> Iterator[Record]:
    """Yields the sample of an entry that the trainer gets. Raises ValueError if it has no prompt and response."""
    row = entry if isinstance(entry, dict) else {}
    if not isinstance(row.get("prompt"), str) or not isinstance(row.get("response"), str):
        raise ValueError("has no `prompt` and `response`")
    ended, advantage = row["response"].endswith(END), to_float(row.get("reward"))
    record = Record(row["prompt"], row["response"].removesuffix(END), truncated=not ended)
    record.advantages = None if advantage is None else [advantage]
    match = DATA.match(context.filename.rpartition("/")[2])
    record.extras = {key: value for key, value in row.items() if key not in ("prompt", "response", "reward")}
    if match and match["role"]:
        record.extras["role"] = ROLES[match["role"]]
    yield record


def build_samples(task: Any, context: DumpContext) -> Iterator[Record]:
    """Yields the programs of a task, then its tests. Raises ValueError if the task has another form."""
    if not isinstance(task, dict):
        raise ValueError(f"is {describe_json_type(task)} where a task is expected")
    match = OUTPUTS.match(context.filename.rpartition("/")[2])
    matrix = Matrix.from_task(task)
    programs = build_records(task, "code", "generated_code")
    tests = build_records(task, "case", "case_input", "case_output", "case_text")
    if matrix:
        for index, program in enumerate(programs[: len(matrix.passed)]):
            set_test_results(program, matrix, index)
        for column, test in enumerate(tests[: len(matrix.passed[0]) - matrix.given], matrix.given):
            test.extras["passed_by"] = [row[column] for row in matrix.passed]
            set_test_reward(test, test.extras["passed_by"], matrix.correct)
    for record in (*programs, *tests):
        record.data_source = match["data"] if match else None
        record.extras["task"] = hashlib.sha256(str(task.get("question")).encode("utf-8", "replace")).hexdigest()[:12]
        record.extras |= {key: value for key, value in task.items() if key not in KNOWN_KEYS}
        yield record


# Keys of a task that its samples store per sample or in another form.
KNOWN_KEYS = frozenset(
    ("full_code_generation", "code_response_length", "full_case_generation", "case_response_length", "generated_code",
     "num_ground_truth_test", "all_case_input", "all_case_output", "case_input", "case_output", "case_text",
     "code_generation_prompt", "case_generation_prompt", "all_case_exe_results", "all_case_bool_table", "test_input",
     "test_output", "case_bool_table", "case_exe_results", "test_bool_table", "test_exe_results")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrix:
    """Which program passes which test: `passed[program][test]`. The first `given` tests are from the data set."""

    passed: Table
    printed: list[list[Any]]
    given: int
    cases: list[dict[str, str]]  # the tests, cut to `MAX_CASE_CHARS` because every program repeats them
    truth: str | None

    @classmethod
    def from_task(cls, task: JsonObject) -> Matrix | None:
        """Returns None if the programs were not run or there are none. Raises ValueError for another table form."""
        table, printed = task.get("all_case_bool_table"), task.get("all_case_exe_results")
        inputs, outputs = get_texts(task, "all_case_input"), get_texts(task, "all_case_output")
        given = to_integer(task.get("num_ground_truth_test")) or 0
        if table is None and isinstance(task.get("test_bool_table"), list):
            table, printed = join_halves(task, "bool_table"), join_halves(task, "exe_results")
            inputs = get_texts(task, "test_input") + get_texts(task, "case_input")
            outputs = get_texts(task, "test_output") + get_texts(task, "case_output")
            given = len(task["test_bool_table"][0]) if task["test_bool_table"] else 0
        if not table:
            return None
        if not is_table(table):
            raise ValueError("has an `all_case_bool_table` that is not a table of true and false")
        tests = [{"input": text, "output": output} for text, output in zip(inputs, outputs, strict=False)]
        cases = [{key: text[:MAX_CASE_CHARS] for key, text in test.items()} for test in tests]
        given = max(0, min(given, len(table[0])))
        truth = to_json(tests[:given]) if given else None
        return cls(table, printed if isinstance(printed, list) else [], given, cases, truth)

    @property
    def correct(self) -> list[bool]:
        """Returns for each program whether it passes all given tests."""
        return [all(row[: self.given]) for row in self.passed]


def is_table(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        return False
    return len({len(row) for row in value}) == 1 and all(isinstance(cell, bool) for row in value for cell in row)


def join_halves(task: JsonObject, name: str) -> Any:
    """Joins the two halves of the table of an evaluation: the given tests, then the tests of the tester."""
    given, own = get_nested_list(task, f"test_{name}"), get_nested_list(task, f"case_{name}")
    return [[*first, *second] for first, second in zip(given, own or [[]] * len(given), strict=False)]


def get_nested_list(task: JsonObject, key: str) -> list[list[Any]]:
    """Returns a list of lists; empty if there is none. Raises ValueError for any other value."""
    value = task.get(key) or []
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise ValueError(f"has a `{key}` that is not a list of lists")
    return value


def get_texts(task: JsonObject, key: str) -> list[str]:
    """Returns a list of texts. Raises ValueError for any other value."""
    value = task.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"has a `{key}` that is {describe_json_type(value)} where a list is expected")
    return [text if isinstance(text, str) else to_json(text) for text in value]


def build_records(task: JsonObject, stage: str, *text_keys: str) -> list[Record]:
    """Returns the responses of a stage (`code` or `case`). Extras: their lengths and the texts under these keys."""
    prompt = str(task.get(f"{stage}_generation_prompt", ""))
    columns = {"response_length": get_list(task, f"{stage}_response_length")}
    columns |= {key: get_texts(task, key) for key in text_keys}
    records = []
    for index, response in enumerate(get_texts(task, f"full_{stage}_generation")):
        values = {key: column[index] for key, column in columns.items() if index < len(column)}
        records.append(Record(prompt, response, index=index, extras={"role": ROLES[stage], **values}))
    return records


def set_test_results(record: Record, matrix: Matrix, index: int) -> None:
    """Sets the test results of a program, its score and its ground truth."""
    row, given = matrix.passed[index], matrix.given
    record.extras["tests"] = {"passed": row, "given": given, "cases": matrix.cases}
    if index < len(matrix.printed):
        record.extras["tests"]["printed"] = matrix.printed[index]
    if given:
        record.score = sum(row[:given]) / given
        record.rewards["acc"] = float(all(row[:given]))
        record.ground_truth = matrix.truth


def set_test_reward(record: Record, passed: list[bool], correct: list[bool]) -> None:
    """Sets the reward of a test before normalization. Sets none if no program is correct: it is unknown then."""
    if not any(correct):
        return
    valid = all(result for result, is_right in zip(passed, correct, strict=True) if is_right)
    wrong = [result for result, is_right in zip(passed, correct, strict=True) if not is_right]
    results = [not result if valid else result for result in wrong]
    record.rewards["acc"] = float(valid)
    share = sum(results) / len(results) if results else 1.0
    record.score = share if valid else 0.0 - share
