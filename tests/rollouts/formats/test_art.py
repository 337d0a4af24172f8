"""Trajectories of ART: turns with tool calls, metrics as numbers, groups. The file was written by ART itself."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import DumpContext, art, select_format
from rollouts.samples import LineProblem, Record
from tests.conftest import DATA

SOURCE = "wiki/models/agent-1/trajectories/train/0004.parquet"
FILE = DATA / "art" / SOURCE


def read_items(path: Path) -> list[Any]:
    return list(art.read(io.BytesIO(), DumpContext(SOURCE, step=4, path=path)))


def write_table(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def test_the_format_is_recognised_by_the_path() -> None:
    assert select_format(SOURCE, FILE.read_bytes()[:65536]).name == "art"
    assert select_format("0004.parquet", FILE.read_bytes()[:65536]).name == "table"


def test_a_trajectory_has_its_tool_calls_in_text_and_messages() -> None:
    first, second, third = read_items(FILE)
    assert first.prompt == "system\nUse the tool.\nuser\nWho wrote Faust?\nassistant\n"
    assert first.response == (
        '<tool_call>\n{"name": "search", "arguments": {"query": "Who wrote Faust?"}}\n</tool_call>\n'
        "tool\nresult 0\nassistant\nThe answer is Schiller."
    )
    assert first.messages[2]["tool_calls"][0]["function"]["name"] == "search"
    assert first.messages[3] == {"role": "tool", "content": "result 0", "tool_call_id": "call_0"}
    assert [message.get("trainable") for message in first.messages] == [None, None, True, None, True]
    assert first.tools[0]["function"]["name"] == "search"
    assert (third.prompt, third.response) == ("user\n2+2? 日本\u2028x\nassistant\n", "4 😀")


def test_scores_metrics_groups_and_extras_are_read() -> None:
    rows = read_items(FILE)
    assert [(row.group, row.index, row.score) for row in rows] == [("0", 0, 0.0), ("0", 1, 1.0), ("1", 0, 0.25)]
    assert [row.metrics for row in rows] == [{"correct": False, "turns": 2}, {"correct": True, "turns": 2}, None]
    assert rows[1].extras == {
        "metadata": {"scenario": "Who wrote Faust?", "difficulty": 3},
        "group_metadata": {"task": "lit"},
        "group_metrics": {"spread": 0.5},
        "logs": ["log of 1"],
        "group_logs": ["judge ran"],
    }
    assert rows[2].extras == {}


def test_examples_in_the_prompt_are_no_answers_of_the_model(tmp_path: Path) -> None:
    roles = ("user", "assistant", "user", "assistant", "user", "assistant")
    turns = [{"role": role, "content": text, "trainable": None} for role, text in zip(roles, "abcdef", strict=True)]
    (unmarked,) = read_items(write_table(tmp_path / "a.parquet", {"reward": 1.0, "messages": turns}))
    assert (unmarked.prompt, unmarked.response) == (
        "user\na\nassistant\n",
        "b\nuser\nc\nassistant\nd\nuser\ne\nassistant\nf",
    )
    turns[3]["trainable"] = turns[5]["trainable"] = True
    (marked,) = read_items(write_table(tmp_path / "b.parquet", {"reward": 1.0, "messages": turns}))
    assert marked.prompt == "user\na\nassistant\nb\nuser\nc\nassistant\n"
    assert marked.response == "d\nuser\ne\nassistant\nf"


def test_a_row_without_messages_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    turn = {"role": "user", "content": "hi", "tool_calls": None}
    answer = {"role": "assistant", "content": None, "tool_calls": "{not json"}
    path = write_table(
        tmp_path / "a.parquet",
        {"reward": 1.0, "messages": [turn, answer], "metrics": "[1]", "metadata": "plain"},
        {"reward": 1.0, "messages": [], "metrics": None, "metadata": None},
    )
    record, problem = read_items(path)
    assert isinstance(record, Record) and isinstance(problem, LineProblem) and problem.line == 2
    assert (record.group, record.metrics, record.extras) == (None, None, {"metadata": "plain"})


@pytest.mark.parametrize("row", [{"reward": 1.0}, {"messages": "x"}])
def test_a_table_with_other_columns_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(UnreadableDumpError, match="no columns"):
        read_items(write_table(tmp_path / "a.parquet", row))
