"""`log_samples` and `import` store the same samples, whatever the shape of the rows."""

from __future__ import annotations

import json
import logging
import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import datasets
import pandas
import polars
import pyarrow
import pytest
from django.contrib.auth.models import User
from django.test import Client

from rolloutdeck.cli.folders import import_report
from rollouts.models import Run
from tests.rolloutdeck.support.logged_rows import GOOD, NATIVE, end_run, index_all, load_steps
from tests.rolloutdeck.support.step_files import run_import

pytestmark = pytest.mark.django_db(transaction=True)

USER, ANSWER = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SHAREGPT = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]


@dataclass
class DataclassRow:
    prompt: str
    completion: str
    reward: float


TupleRow = namedtuple("TupleRow", "prompt response score")

# Rows that people log and write. Each is a list of rows for both ways.
ROWS: dict[str, list[Any]] = {
    "documented keys": [{"prompt": "1+1?", "response": "2", "score": 1.0}],
    "with extras": [{"prompt": "1+1?", "response": "2", "score": 1.0, "lang": "zh", "acc": 1, "note": None}],
    "groups": [{"prompt": "q", "response": str(k), "score": k, "group": "a", "index": k} for k in range(4)],
    "reward parts": [{"prompt": "q", "response": "2", "score": 1.0, "rewards": {"format": 0.5, "exact": 0.5}}],
    "truth and source": [{"prompt": "q", "response": "2", "score": 1, "ground_truth": "2", "data_source": "gsm8k"}],
    "trl": [{"prompt": "1+1?", "completion": "2", "reward": 1.0}],
    "trl messages": [{"prompt": [USER], "completion": [ANSWER], "reward": 1.0}],
    "trl advantage": [{"prompt": "q", "completion": str(k), "reward": k, "advantage": k - 0.5} for k in (0, 1)],
    "trl named rewards": [{"prompt": "q", "completion": "2", "format_reward": 1.0, "reward_exact": 0.0}],
    "verl": [{"input": "user\n1+1?\nassistant\n", "output": "2", "score": 1.0, "gts": "2"}],
    "question and answer": [{"question": "1+1?", "output": "2", "answer": "2", "correct": True}],
    "instruction": [{"instruction": "add", "generation": "2", "score": 0.5}],
    "problem and solution": [{"problem": "1+1?", "prediction": "2", "solution": "2", "is_correct": False}],
    "query": [{"query": "1+1?", "model_response": "2", "total_reward": 0.1}],
    "generated text": [{"input": "1+1?", "generated_text": "2"}],
    "messages": [{"messages": [USER, ANSWER]}],
    "messages and score": [{"messages": [USER, ANSWER], "score": 0.3}],
    "messages with tools": [
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                      {"role": "tool", "content": "2"}, ANSWER], "reward": 1.0}
    ],
    "system prompt": [{"messages": [{"role": "system", "content": "Be short."}, USER, ANSWER], "reward": 1.0}],
    "conversation": [{"conversation": [USER, ANSWER], "reward": 0.0}],
    "sharegpt": [{"conversations": SHAREGPT, "reward": 0.0}],
    "prompt messages, response text": [{"prompt": [USER], "response": "2", "score": 1.0}],
    "prompt text, response messages": [{"prompt": "1+1?", "response": [ANSWER], "score": 1.0}],
    "prompt and response message": [{"prompt": USER, "response": ANSWER, "score": 1.0}],
    "messages as JSON text": [{"prompt": json.dumps([USER]), "response": "2", "score": 1.0}],
    "reasoning": [{"messages": [USER, {**ANSWER, "reasoning_content": "one and one"}]}],
    "label": [{"prompt": "1+1?", "response": "2", "score": 1, "label": "2"}],
    "uid": [{"prompt": "1+1?", "response": "2", "score": 1, "uid": "a-1"}],
    "reward or score": [
        {"prompt": "1+1?", "response": "2", "score": 0.25}, {"prompt": "1+1?", "completion": "3", "reward": 0.75}
    ],
    "several scores": [
        {"prompt": "q", "response": "1", "score": 1.0}, {"prompt": "q", "response": "2", "scores": [0.5, 0.25]},
        {"prompt": "q", "response": "3", "reward": {"acc": 1.0, "format": 0.5}},
    ],
    "one and several responses": [
        {"prompt": "1+1?", "response": "2", "score": 1.0}, {"prompt": "1+1?", "responses": ["2", "3"]}
    ],
    "names of other parts": [
        {"prompt": "q", "response": "1", "index": 0, "group": "a", "data_source": "math", "messages": [USER]},
        {"prompt": "q", "response": "2", "sample_id": "abc-1", "group_id": ["x"], "source": {"a": 1}, "turns": 3},
        {"prompt": "q", "response": "3", "prompt_tokens": 12, "response_tokens": 30, "rollout_log_probs": "x"},
        {"prompt": "q", "response": "4", "prompt_ids": [1], "response_ids": [2], "logprobs": [-0.5]},
    ],
    "another score at the end": [
        *({"prompt": "q", "response": str(k), "score": 1.0} for k in range(300)),
        {"prompt": "q", "response": "x", "reward": 0.25}, {"prompt": "q", "completion": "y", "reward": 0.75},
    ],
    "reward and score": [{"prompt": "1+1?", "response": "2", "score": 1, "reward": 0.5}],
    "reward number under rewards": [{"prompt": "1+1?", "response": "2", "rewards": 0.5}],
    "several responses": [{"prompt": "1+1?", "responses": ["2", "3"], "scores": [1, 0]}],
    "numbered responses": [{"input_1": "1+1?", "output_1": "2", "input_2": "2+2?", "output_2": "4"}],
    "list of samples": [{"prompt": "1+1?", "samples": [{"response": "2", "score": 1}, {"response": "3", "score": 0}]}],
    "nested truth": [{"prompt": "q", "response": "2", "score": 1, "reward_model": {"ground_truth": "2"}}],
    "token ids": [{"prompt": "q", "response": "2", "score": 1, "prompt_ids": [1, 2], "response_ids": [3]}],
    "log-probs": [{"prompt": "q", "response": "2", "score": 1, "response_ids": [3], "logprobs": [-0.5]}],
    "other case": [{"Prompt": "1+1?", "Completion": "2", "Reward": 1.0}],
    "with blanks": [{"Full Prompt": "1+1?", "Model Output": "2"}],
    "null response": [{"prompt": "1+1?", "response": None, "score": 0.0}],
    "empty response": [{"prompt": "1+1?", "response": "", "score": 0.0}],
    "missing text of pandas": [
        {"prompt": "1+1?", "completion": "2", "label": "2"},
        {"prompt": math.nan, "completion": math.nan, "label": math.nan},
    ],
    "null score": [{"prompt": "1+1?", "response": "2", "score": None}],
    "missing prompt": [{"prompt": "q", "response": "2", "score": 1}, {"response": "3", "score": 0}],
    "stop reason": [{"prompt": "q", "response": "2", "score": 1, "stop_reason": "length"}],
    "unicode": [{"prompt": "１＋１？\u2028", "response": "二", "score": 1}],
}  # fmt: skip

TEXTS_ONLY = "neither a text nor a list of messages"
# Rows that can't be used. Each is logged and written after a good one, which is stored.
BROKEN: dict[str, Any] = {
    "a text": "just a text",
    "an empty text": "",
    "a number": 17,
    "a fraction": -1.5,
    "a list of texts": ["q", "2"],
    "an empty list": [],
    "null": None,
    "true": True,
    "a list of rows": [GOOD],
    "no response": {"prompt": "q"},
    "a misspelled response": {"prompt": "q", "respose": "2"},
    "empty": {},
    "other keys": {"a": 1, "b": 2},
    "only a score": {"score": 0.5},
    "only metadata": {"epoch": 3, "lang": "zh"},
    "only the expected answer": {"prompt": "q", "ground_truth": "2"},
    "only the answer of a data set": {"prompt": "q", "answer": "2"},
    "only log-probs": {"prompt": "q", "logprobs": [-0.5]},
    "only token ids of the prompt": {"prompt_ids": [1, 2]},
    "only rewards": {"prompt": "q", "rewards": {"format": 1.0}},
    "a row in a row": {"row": {"prompt": "q", "completion": "2"}},
    "messages that are a number": {"messages": 3},
    "messages without roles": {"messages": [{"content": "q"}]},
    "no messages": {"messages": []},
    "a whole number as response": {**GOOD, "completion": 17},
    "a fraction as response": {**GOOD, "completion": 0.5},
    "true as response": {**GOOD, "completion": True},
    "numbers as response": {**GOOD, "completion": [1, 2]},
    "a role that is a number in the response": {**GOOD, "completion": [{"role": 3}]},
    "a message without a role as response": {**GOOD, "completion": [{"content": "2"}]},
    "a text of a message as response": {**GOOD, "completion": [ANSWER, 3]},
    "a mapping as response": {**GOOD, "completion": {"text": "2"}},
    "a list of lists as response": {**GOOD, "completion": [[["2"]]]},
    "a fraction as prompt": {**GOOD, "prompt": 3.5},
    "a whole number as prompt": {**GOOD, "prompt": 5},
    "numbers as prompt": {**GOOD, "prompt": [[1], [2]]},
    "false as prompt": {**GOOD, "prompt": False},
    "a mapping as prompt": {**GOOD, "prompt": {"text": "q"}},
    "texts as prompt": {**GOOD, "prompt": ["q", "r"]},
    "a message without a role as prompt": {**GOOD, "prompt": [{"content": "q"}]},
    "a message and a text as prompt": {**GOOD, "prompt": [USER, "q"]},
}


def log_and_import(rows_by_step: dict[int, Any], node: Path, log: Callable[..., None]) -> None:
    """Logs the rows of each step to the run `logged`, and imports them as JSON Lines into the run `imported`."""
    for step, rows in rows_by_step.items():
        log(rows, step=step)
        lines = [json.dumps(row) for row in rows]
        (node / f"{step}.jsonl").write_text("\n".join(lines) + "\n")


def test_forty_shapes_are_stored_as_import_stores_them(node: Path, logged_run: Any) -> None:
    assert len(ROWS) >= 40
    names = list(ROWS)
    log_and_import({number: ROWS[name] for number, name in enumerate(names)}, node, logged_run.log_samples)
    status = end_run(logged_run)
    assert run_import(node, "--run", "imported", "--format", "table") == 0
    index_all()
    by_log, by_import = load_steps("logged"), load_steps("imported")
    for number, name in enumerate(names):
        assert by_log.get(number) == by_import.get(number), name
        assert by_log.get(number), name
    rows = sum(map(len, ROWS.values()))
    assert (status.sent, status.rejected, status.waiting) == (rows, 0, 0)


@pytest.mark.parametrize("good", [GOOD, NATIVE], ids=["mapped", "documented"])
def test_a_broken_row_loses_no_other_row_and_is_reported_everywhere(
    node: Path, logged_run: Any, client: Client, owner: User,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], good: dict[str, Any],
) -> None:  # fmt: skip
    assert len(BROKEN) >= 40 and len(set(map(repr, BROKEN.values()))) == len(BROKEN)
    cases = [(name, rename_response(row, good)) for name, row in BROKEN.items()]
    # The server stores each row's reason of at most 20 rows of a step.
    steps = {step: cases[start : start + 15] for step, start in enumerate(range(0, len(cases), 15))}
    with caplog.at_level(logging.WARNING):
        log_and_import(
            {step: [good, *(row for _, row in part)] for step, part in steps.items()}, node, logged_run.log_samples
        )
        status = end_run(logged_run)
        logged_run.finish()
    assert run_import(node, "--run", "imported", "--format", "table") == 0
    index_all()
    capsys.readouterr()
    dumps = Run.objects.get(name="imported").dumps.values(
        "source", "sha256", "state", "message", "problems", "left_out"
    )
    assert import_report.print_problems(list(dumps), ()) == 0  # what `import` prints when all is indexed
    printed = capsys.readouterr().err
    by_log, by_import = load_steps("logged"), load_steps("imported")
    by_path = {name: load_problems(name) for name in ("logged", "imported")}
    client.force_login(owner)
    page = unescape(client.get(f"/runs/{logged_run.uid}/").content.decode())
    for step, part in steps.items():
        assert by_log[step] == by_import[step] and len(by_log[step]) == 1
        for line, (name, _) in enumerate(part, 2):
            reason = by_path["logged"][step][line]
            assert by_path["imported"][step][line] == reason, name
            assert f", {reason}. Example: " in caplog.text, name
            assert any(problem.endswith(f": {reason}") for problem in status.problems), name
            assert f": {reason}" in printed and reason in page, name
    assert (status.sent, status.indexed, status.rejected) == (len(cases) + len(steps), len(steps), len(cases))
    assert f"{len(steps)} indexed, {len(cases)} rejected. Each reason once:\n- step " in caplog.text


def rename_response(row: Any, good: dict[str, Any]) -> Any:
    """Returns the row with the names of the good rows."""
    if not isinstance(row, dict) or "response" not in good:
        return row
    return {"response" if name == "completion" else name: value for name, value in row.items()}


def load_problems(name: str) -> dict[int, dict[int, str]]:
    """Returns the reason of each rejected row by step and line."""
    dumps = Run.objects.get(name=name).dumps.exclude(step=None).values_list("step", "problems")
    return {step: dict(problems) for step, problems in dumps}


def test_each_reason_of_a_call_is_reported_once_with_an_example(
    logged_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logged_run.log_samples([GOOD, {"prompt": "a"}, {**GOOD, "prompt": 5}, {"prompt": "b"}, None], step=3)
    status = end_run(logged_run)
    reports = [record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage()]
    assert reports == [
        "2 of 5 rows of log_samples(step=3) cannot be used; the first, row 2, has no response; its keys are `prompt`. "
        'Example: {"prompt":"a"}',
        f"1 of 5 rows of log_samples(step=3) cannot be used; the first, row 3, its prompt is a number, {TEXTS_ONLY}. "
        'Example: {"prompt":5,"completion":"2","reward":1.0}',
        "1 of 5 rows of log_samples(step=3) cannot be used; the first, row 5, holds null where an object is expected. "
        "Example: null",
    ]
    assert len(status.problems) == 3 and str(status) == "5 rows sent, 1 indexed, 4 rejected"


class Completion:
    """An object of an inference engine."""

    text = "2"


class PydanticMessage:
    def model_dump(self) -> dict[str, str]:
        return ANSWER


def test_rows_of_one_call_may_name_a_part_differently(logged_run: Any) -> None:
    logged_run.log_samples(ROWS["reward or score"], step=1)
    logged_run.log_samples([{**NATIVE, "reward": 0.5}, {"prompt": "q", "response": "3", "reward": 0.75}], step=2)
    end_run(logged_run)
    steps = load_steps("logged")
    assert [(sample["response"], sample["score"]) for sample in steps[1]] == [("2", 0.25), ("3", 0.75)]
    # A row that has both names means two things.
    assert [(sample["score"], sample["extras"].get("reward")) for sample in steps[2]] == [(1.0, 0.5), (None, 0.75)]


@pytest.mark.parametrize("good", [GOOD, NATIVE], ids=["mapped", "documented"])
def test_an_object_without_a_json_form_is_no_text(
    logged_run: Any, caplog: pytest.LogCaptureFixture, good: dict[str, Any]
) -> None:
    rows = [good, {**good, [*good][1]: Completion()}, {**good, "prompt": Completion()}, Completion()]
    logged_run.log_samples([*rows, {**good, [*good][1]: [PydanticMessage()]}], step=1)
    assert str(end_run(logged_run)) == "5 rows sent, 2 indexed, 3 rejected"
    assert "its response is an object" in caplog.text and "its prompt is an object" in caplog.text
    assert "at 0x" not in caplog.text
    assert {sample["response"] for sample in load_steps("logged")[1]} == {"2"}


TABLES: dict[str, Any] = {
    "a dict of columns": {"prompt": ["p", "q"], "completion": ["2", "3"], "reward": [1.0, 0.0]},
    "columns of messages": {"prompt": [[USER], [USER]], "completion": [[ANSWER], [ANSWER]], "reward": [1.0, 0.0]},
    "columns and one value": {"prompt": ["p", "q"], "completion": ["2", "3"], "model": "tiny"},
    "columns of conversations": {"messages": [[USER, ANSWER], [USER, ANSWER]]},
    "columns of several responses": {"prompt": ["p"], "responses": [["2", "3"]]},
    "arrow": pyarrow.table({"prompt": ["p", "q"], "completion": ["2", "3"], "reward": [1.0, 0.0]}),
    "an arrow batch": pyarrow.record_batch({"prompt": ["p", "q"], "completion": ["2", "3"]}),
    "polars": polars.DataFrame({"prompt": ["p", "q"], "completion": ["2", "3"], "reward": [1.0, 0.0]}),
    "dataclasses": [DataclassRow("p", "2", 1.0), DataclassRow("q", "3", 0.0)],
    "named tuples": [TupleRow("p", "2", 1.0), TupleRow("q", "3", 0.0)],
    "a lazy frame": polars.LazyFrame({"prompt": ["p", "q"], "completion": ["2", "3"]}),
    "pandas": pandas.DataFrame({"prompt": ["p", "q"], "completion": ["2", "3"], "reward": [1.0, 0.0]}, index=[7, 9]),
    "datasets": datasets.Dataset.from_dict({"prompt": ["p", "q"], "completion": ["2", "3"]}),
    "an iterable data set": datasets.Dataset.from_dict(
        {"prompt": ["p", "q"], "response": ["2", "3"]}
    ).to_iterable_dataset(),
    "columns of pandas": dict(pandas.DataFrame({"prompt": ["p", "q"], "completion": ["2", "3"]}, index=[7, 9])),
    "a generator": ({"prompt": "p", "completion": str(k)} for k in range(2)),
    "a tuple of rows": ({"prompt": "p", "completion": "2"}, {"prompt": "p", "completion": "3"}),
}


def test_tables_and_objects_become_two_samples(logged_run: Any) -> None:
    for step, rows in enumerate(TABLES.values()):
        logged_run.log_samples(rows, step=step)
    logged_run.log_samples({"prompt": "p", "completion": "2", "reward": 1.0}, step=100)
    logged_run.log_samples({"prompt": [USER], "response": [ANSWER]}, step=101)
    end_run(logged_run)
    counts = {step: len(samples) for step, samples in load_steps("logged").items()}
    assert counts == {**dict.fromkeys(range(len(TABLES)), 2), 100: 1, 101: 1}


def test_explicit_columns_are_those_of_import(node: Path, logged_run: Any) -> None:
    rows = [{"frage": "1+1?", "antwort": "2", "punkte": 1.0, "label": "x"}]
    logged_run.log_samples(rows, step=1, columns="prompt=frage,response=antwort,score=punkte")
    logged_run.log_samples([{**NATIVE, "label": "x"}], step=2, columns="native")
    end_run(logged_run)
    steps = load_steps("logged")
    assert (steps[1][0]["prompt"], steps[1][0]["score"], steps[1][0]["ground_truth"]) == ("1+1?", 1.0, "x")
    assert (steps[2][0]["ground_truth"], steps[2][0]["extras"]) == (None, {"label": "x"})
