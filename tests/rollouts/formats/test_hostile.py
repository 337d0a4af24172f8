"""Hostile and broken files give records or an error message, with limited time and memory."""

from __future__ import annotations

import io
import json
import pickle
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolloutdeck.protocol import wire
from rollouts.errors import UnreadableDumpError
from rollouts.formats import FORMATS, HEAD_BYTES, DumpContext, select_format
from rollouts.formats.readers import parquet as parquet_rows
from rollouts.samples.record import LineProblem, Record
from rollouts.samples.values import to_json
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.support.patching import patch_everywhere

FORMS = {form.name: form for form in FORMATS}
PARQUETS = ("table", "trl-completions")


def read_items(form: str, body: bytes, **options: Any) -> list[Any]:
    return list(FORMS[form].read(io.BytesIO(body), DumpContext(**{"step": 1, **options})))


def read_records(form: str, body: bytes, **options: Any) -> list[Record]:
    result = read_items(form, body, **options)
    assert all(isinstance(item, Record) for item in result), result
    return result


def encode_parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"prompt": ["2+2?"], "completion": ["4"], **columns}), sink)
    return bytes(sink.getvalue())


COLUMNS: dict[str, tuple[pa.Array, Any]] = {
    "nanoseconds": (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")), "2023-11-14 22:13:20.123456789"),
    "far date": (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), None),
    "unknown zone": (pa.array([1], pa.timestamp("us", "No/Where")), None),
    "duration": (pa.array([2**62], pa.duration("s")), None),
    "broken text": (pa.array([b"\xff4"], pa.binary()).view(pa.string()), "\ufffd4"),
    "decimal": (pa.array([Decimal("1.5")]), "<1.5>"),
    "date": (pa.array([date(2026, 11, 22)]), "<2026-11-22>"),
}


@pytest.mark.parametrize("form", PARQUETS)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_with_values_that_python_cannot_represent_loses_no_row(name: str, form: str) -> None:
    column, expected = COLUMNS[name]
    (record,) = read_records(form, encode_parquet(beside=column))
    assert record.response == "4"
    assert expected is None or record.extras["beside"] == expected


@pytest.mark.parametrize("part", ["prompt", "completion"])
@pytest.mark.parametrize("value", [b"4", Decimal(4)])
def test_a_row_whose_prompt_or_answer_is_no_text_is_read(value: Any, part: str) -> None:
    assert len(read_records("trl-completions", encode_parquet(**{part: pa.array([value])}))) == 1


@pytest.mark.parametrize("form", PARQUETS)
@pytest.mark.parametrize("kept_once", [True, False])
def test_the_size_that_a_small_parquet_file_expands_to_is_limited(
    form: str, kept_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 10_000]))
    body = encode_parquet(prompt=["2+2?"] * 1000, completion=same if kept_once else same.dictionary_decode())
    assert len(body) < 50_000
    patch_everywhere(monkeypatch, wire, "MAX_DUMP_BYTES", 5_000_000)
    with pytest.raises(UnreadableDumpError, match="unfolds"):
        read_items(form, body)
    monkeypatch.setattr(parquet_rows, "MAX_ROWS", 999)
    with pytest.raises(UnreadableDumpError, match="1,000 rows"):
        read_items(form, body)


SHAPES: dict[str, Any] = {
    "text": ["x" * 10_000] * 64,
    "messages": [[{"role": "assistant", "content": "x" * 10_000}]] * 64,
    "map": pa.array([[("key", "x" * 10_000)]] * 64, pa.map_(pa.string(), pa.string())),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_that_is_stored_once_is_counted_for_each_row(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(encode_parquet(prompt=["2+2?"] * 64, completion=["4"] * 64, beside=SHAPES[shape]))
    with parquet_rows.open_parquet(path) as file:
        (batch,) = file.iter_batches()
        assert batch.nbytes < 30_000  # the value is stored once for all rows
        assert 640_000 < parquet_rows.count_batch_bytes(batch) < 650_000
        assert 10_000 < parquet_rows.count_batch_bytes(batch.slice(3, 1)) < 10_100
        several = [str(row) for row in parquet_rows.read_parquet_rows(file)]
        monkeypatch.setattr(parquet_rows, "MAX_BATCH_BYTES", 1000)
        assert [str(row) for row in parquet_rows.read_parquet_rows(file)] == several  # one by one
        patch_everywhere(monkeypatch, wire, "MAX_LINE_BYTES", 10_000)
        with pytest.raises(UnreadableDumpError, match="A row"):
            list(parquet_rows.read_parquet_rows(file))


def test_a_row_of_empty_lists_is_refused_before_it_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(encode_parquet(prompt=["2+2?"] * 2, completion=["4"] * 2, beside=[[], [[]] * 100_000]))
    with parquet_rows.open_parquet(path) as file:
        assert len(list(parquet_rows.read_parquet_rows(file))) == 2
        monkeypatch.setattr(parquet_rows, "MAX_BATCH_BYTES", 1 << 20)
        with pytest.raises(UnreadableDumpError, match="Row 2 of the Parquet file has so many small lists"):
            list(parquet_rows.read_parquet_rows(file))


@pytest.mark.parametrize("form", PARQUETS)
def test_a_parquet_file_whose_columns_have_no_readable_names_is_refused(form: str) -> None:
    body = encode_parquet(**{"some_name": ["x"]}).replace(b"some_name", b"some\xec\xffame")
    with pytest.raises(UnreadableDumpError, match="not a readable Parquet file"):
        read_items(form, body)


@pytest.mark.parametrize("body", [b"prompt,response\n2+2?,4\n", b"prompt,response", b'\n"'])
def test_the_length_of_a_csv_line_is_limited(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_LINE_BYTES", 1000)
    with pytest.raises(UnreadableDumpError, match="line is over"):
        read_items("table", body + b"x" * 2000)


def test_a_csv_keeps_line_ends_and_bytes_that_are_no_text_within_its_cells() -> None:
    problem, record = read_items("table", b'\xef\xbb\xbfprompt,response\r\n"a\r\nb","caf\xe9\xe2\x80\xa8"\r\n')
    assert problem.repaired
    assert (record.prompt, record.response) == ("a\r\nb", "caf\ufffd\u2028")


def test_an_empty_cell_is_unknown_but_an_empty_response_is_kept() -> None:
    body = b"prompt,response,reward\n2+2?,,0\n,4,\n,,\n"
    assert select_format("a.csv", body).name == "table"
    values = [(record.prompt, record.response, record.score) for record in read_records("table", body)]
    assert values == [("2+2?", "", 0.0), ("", "4", None)]


def test_the_response_is_read_from_messages_if_a_row_has_none() -> None:
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    (record,) = read_records("table", json.dumps({"messages": messages, "response": None, "score": 1}).encode())
    assert record.response == "4"


@pytest.mark.parametrize("part", ["score", "index"])
def test_a_text_in_a_number_column_is_kept_as_an_extra(part: str) -> None:
    (record,) = read_records("table", f"prompt,response,{part}\n2+2?,4,good\n".encode())
    assert record.extras == {part: "good"}


def test_a_column_that_comes_after_the_first_rows_is_kept() -> None:
    rows = [{"prompt": "2+2?", "response": str(at)} | ({"late": at} if at == 300 else {}) for at in range(301)]
    records = read_records("table", b"\n".join(json.dumps(row).encode() for row in rows))
    assert records[-1].extras == {"late": 300}


def test_a_column_that_is_called_like_a_reward_and_holds_none_is_kept() -> None:
    model = {"style": "rule", "ground_truth": "4"}
    row = {"prompt": "2+2?", "response": "4", "reward_model": model, "reward_format": 0.5}
    (record,) = read_records("table", json.dumps(row).encode())
    assert (record.extras, record.rewards) == ({"reward_model": model}, {"format": 0.5})


def test_rows_whose_first_key_is_data_are_rows() -> None:
    row = json.dumps({"data": "gsm8k", "question": "2+2?", "completion": "4"}).encode() + b"\n"
    assert [record.response for record in read_records(select_format("a.jsonl", row).name, row * 2)] == ["4", "4"]


@pytest.mark.parametrize("listed", [True, False])
def test_a_first_row_longer_than_the_head_is_recognised_by_its_keys(listed: bool) -> None:
    row = {"info": {"response": 1}, "question": "2+2?", "completion": "4 {" * HEAD_BYTES, "reward": 1}
    body = json.dumps([row] if listed else row).encode()
    assert select_format("a.json", body[:HEAD_BYTES]).name == "table"
    assert [record.score for record in read_records("table", body)] == [1]


@pytest.mark.parametrize("table", [[5], [[True], 5], [None], [{"a": 1}]])
def test_an_invalid_table_of_tests_is_reported(table: Any) -> None:
    task = {"question": "2+2?", "full_code_generation": ["4"], "test_bool_table": table, "case_bool_table": [[True]]}
    good = {"question": "3+3?", "full_code_generation": ["6"]}
    record, problem = read_items("cure-outputs", json.dumps([task, good]).encode())
    assert record.response == "6" and isinstance(problem, LineProblem)


@pytest.mark.parametrize(("given", "score"), [(-1, None), (-(2**60), None), (9, 0.5)])
def test_a_number_of_given_tests_is_limited_to_the_size_of_the_table(given: int, score: float | None) -> None:
    task = {
        "question": "q", "full_code_generation": ["a"], "full_case_generation": ["t", "u"],
        "num_ground_truth_test": given, "all_case_bool_table": [[True, False]],
    }  # fmt: skip
    program, *_ = read_records("cure-outputs", json.dumps([task]).encode())
    assert program.score == score


def test_long_tests_are_stored_once_for_all_programs() -> None:
    task = {
        "question": "q", "full_code_generation": ["a", "b"], "num_ground_truth_test": 1,
        "all_case_input": ["1" * 50_000], "all_case_output": ["2"], "all_case_bool_table": [[True], [False]],
    }  # fmt: skip
    records = read_records("cure-outputs", json.dumps([task]).encode())
    assert all(len(record.ground_truth or "") > 50_000 for record in records)
    assert records[0].ground_truth is records[1].ground_truth
    assert all(len(to_json(record.extras["tests"])) < 5_000 for record in records)


@pytest.mark.parametrize("before", [5, True, "x", {"a": 1}])
def test_an_invalid_conversation_does_not_end_the_episode(before: Any) -> None:
    steps = [{"chat_completions": before, "model_response": "a"}, {"chat_completions": [], "model_response": "b"}]
    body = json.dumps({"training_step": 1, "episode_id": "e", "trajectories": [{"steps": steps}]}).encode()
    assert [record.response for record in read_records("rllm-episode", body)] == ["a", "b"]


def node(role: str, parent: Any = None, **more: Any) -> dict[str, Any]:
    return {"message": {"role": role, "content": f"{role} {parent}"}, "parent": parent, **more}


def test_a_node_without_a_message_does_not_shift_the_later_ones() -> None:
    nodes = [node("user"), {"parent": 0}, node("system", 1), node("assistant", 2, sampled=True)]
    (record,) = read_records("verifiers", json.dumps({"nodes": nodes}).encode())
    assert record.prompt == "user\nuser None\nsystem\nsystem 1\nassistant\n"
    assert record.response == "assistant 2"


def empty_node(parent: int | None) -> dict[str, Any]:
    return {"parent": parent}


@pytest.mark.parametrize("traces", [1, 100])
@pytest.mark.parametrize("before", [partial(node, "user"), empty_node], ids=["messages", "none"])
def test_an_episode_whose_branches_expand_beyond_the_limit_is_reported(
    before: Any, traces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = [before(at - 1 if at else None) for at in range(300)]
    nodes = [*chain, *(node("assistant", 299, sampled=True) for _ in range(300 // traces))]
    body = json.dumps({"traces": [{"nodes": nodes}] * traces}).encode()
    assert len(read_records("verifiers", body)) == 300
    monkeypatch.setattr(FORMS["verifiers"], "MAX_EPISODE_CHARS", 100_000)
    good = json.dumps({"nodes": [node("user"), node("assistant", 0, sampled=True)]}).encode()
    problem, record = read_items("verifiers", body + b"\n" + good)
    assert isinstance(problem, LineProblem) and record.response == "assistant 0"


@pytest.mark.parametrize("depth", [200, 500, 950, 990])
def test_json_of_any_depth_can_be_written(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    assert json.loads(to_json(value))


@pytest.mark.parametrize("where", ["response", "prompt", "metadata", "key"])
def test_a_text_that_is_stored_once_and_referenced_often_is_counted_each_time(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * 10_000
    value = {"prompt": [{"role": "user", "content": text}], "metadata": {"a": [text]}}.get(where, text)
    samples = [{"prompt": "2+2?", "response": "4", (text if where == "key" else where): value} for _ in range(100)]
    body = asm.archive(asm.members(pickle.dumps({"rollout_id": 1, "samples": samples}, protocol=2)))
    assert len(body) < 100_000
    assert len(read_records("slime-rollout", body)) == 100
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.torch_dict.MAX_ROW_VALUES", 10 * len(text))
    with pytest.raises(UnreadableDumpError, match="values"):
        read_items("slime-rollout", body)
