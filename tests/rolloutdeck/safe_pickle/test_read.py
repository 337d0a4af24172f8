"""The reader reads real and unusual dumps of verl, without torch, tensordict or verl."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from decimal import Decimal
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from rolloutdeck.safe_pickle.batches.batch import extract_row_tokens, open_batch
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load.placeholders import Unreadable
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle.dumps import (
    ALL,
    ASYNC,
    DATA,
    MAIN,
    NUMPY,
    QUEUE,
    V2_NEW,
    Size,
    get_name,
    write_data_proto,
)
from tests.rolloutdeck.safe_pickle.hostile.attributes import build_consolidated
from tests.rolloutdeck.safe_pickle.summary import summarize_dump

__all__ = ["write_data_proto"]


def object_array(*values: Any) -> np.ndarray:
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result


@pytest.mark.parametrize("path", ALL, ids=get_name)
def test_every_value_is_the_one_that_real_verl_loads(path: Path) -> None:
    expected = json.loads((DATA / "verl_dumps.expected.json").read_text())
    assert summarize_dump(path) == expected[get_name(path)]


def test_a_v0_batch_has_its_fields_columns_and_meta_info() -> None:
    with open_batch(MAIN) as batch:
        assert (batch.format, batch.rows, batch.keys, batch.tags) == ("gen_batch", 32, [], [])
        assert {name: (field.dtype, field.shape) for name, field in batch.fields.items()} == {
            "prompts": ("int64", (32, 128)),
            "responses": ("int64", (32, 256)),
            "response_mask": ("int64", (32, 256)),
            "input_ids": ("int64", (32, 384)),
            "attention_mask": ("int64", (32, 384)),
            "position_ids": ("int64", (32, 384)),
            "rollout_log_probs": ("float32", (32, 256)),
            "rm_scores": ("float32", (32, 256)),
        }
        assert batch.meta["reward_extra_keys"] == ["score", "acc", "pred", "format"]
        assert type(batch.meta["timing"]["agent_loop/tool_calls/max"]) is float
        assert [type(batch.column(name)[0]) for name in ("__num_turns__", "score", "acc", "pred")] == [
            int,
            float,
            bool,
            str,
        ]
        assert batch.column("raw_prompt")[0][0]["role"] in ("system", "user")


def test_tokens_come_without_the_padding_on_both_sides() -> None:
    with open_batch(MAIN) as batch:
        for row in range(batch.rows):
            result, mask = batch.tokens(row), batch.tensor("attention_mask", row)
            prompt, response = len(result.prompt_ids), len(result.response_ids)
            assert (prompt, response) == (mask[:128].sum(), mask[128:].sum())
            assert result.prompt_ids == batch.tensor("prompts", row)[128 - prompt :].tolist()
            assert result.response_ids == batch.tensor("responses", row)[:response].tolist()
            assert result.logprobs == batch.tensor("rollout_log_probs", row)[:response].tolist()
            assert result.response_mask == [1] * response
            assert result.rm_scores is not None and result.rm_scores[:-1] == [0.0] * (response - 1)
            assert result.rm_scores[-1] == pytest.approx(batch.column("score")[row])


def test_the_rows_of_a_queue_have_their_own_lengths() -> None:
    with open_batch(QUEUE) as batch:
        assert (batch.format, batch.rows, batch.meta) == ("tq_batch", 32, {"global_steps": 1})
        assert batch.fields["responses"].jagged and batch.fields["responses"].shape[0] == 32
        for row, tag in enumerate(batch.tags):
            result = batch.tokens(row)
            assert (len(result.prompt_ids), len(result.response_ids)) == (tag["prompt_len"], tag["response_len"])
            assert batch.tensor("responses", row).tolist() == result.response_ids
            assert batch.tensor("input_ids", row).tolist() == result.prompt_ids + result.response_ids
        assert [key.rsplit("_", 2)[0] for key in batch.keys] == batch.column("uid")
        assert batch.column("reward_model")[0]["style"] == "rule"
        with pytest.raises(ValueError, match="read one row"):
            batch.tensor("responses")


def test_the_new_batch_of_v2_has_columns_and_no_tensors() -> None:
    with open_batch(V2_NEW) as batch:
        assert (batch.format, batch.rows, batch.fields) == ("new_batch", 32, {})
        assert batch.meta["global_steps"] == 1 and batch.column("reward_model")[0]["style"] == "rule"
        with pytest.raises(SafePickleError, match="no tokens"):
            batch.tokens(0)


def test_both_serialisations_of_a_step_hold_the_same_tensors() -> None:
    left, right = summarize_dump(MAIN), summarize_dump(NUMPY)
    same = set(left["fields"]) - {"rollout_log_probs"}  # random in each of the two runs
    assert {name: left["fields"][name] for name in same} == {name: right["fields"][name] for name in same}


def test_reading_one_row_reads_only_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original_read = ByteSource.read
    with open_batch(MAIN) as batch:
        monkeypatch.setattr(
            ByteSource, "read", lambda self, at, length: read.append(length) or original_read(self, at, length)
        )
        assert batch.tensor("responses", 17).shape == (256,)
        assert sum(read) == 256 * 8


def test_opening_a_batch_reads_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original_read = ByteSource.read
    monkeypatch.setattr(
        ByteSource, "read", lambda self, at, length: read.append(length) or original_read(self, at, length)
    )
    with open_batch(MAIN) as batch:
        assert batch.rows == 32
    assert sum(read) < 90_000  # a block or two; the file has 534,069 bytes


def test_without_numpy_everything_but_arrays_can_be_read() -> None:
    code = f"""
import sys
sys.modules["numpy"] = None
from rolloutdeck.safe_pickle.batches.batch import open_batch
with open_batch({str(MAIN)!r}) as batch:
    assert batch.rows == 32 and batch.tokens(3).logprobs and batch.meta and batch.column("score")
    assert [batch.column(name) for name in batch.columns]
    try:
        batch.tensor("prompts", 0)
    except ImportError:
        print("no numpy")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "no numpy\n", done.stderr


def test_a_row_that_does_not_exist_is_an_index_error() -> None:
    with open_batch(ASYNC) as batch:
        for row in (-1, 4):
            with pytest.raises(IndexError):
                batch.tensor("prompts", row)
            with pytest.raises(IndexError):
                batch.tokens(row)
        with pytest.raises(KeyError):
            batch.column("nothing")


def test_an_unknown_object_is_unreadable_and_the_other_values_are_read(write_data_proto: Any) -> None:
    rows = object_array({"price": Decimal("1.5"), "ok": 1}, {"ok": 2})
    with open_batch(write_data_proto(None, {"extras": rows, "score": np.array([0.5, 1.0])})) as batch:
        first, second = batch.column("extras")
        assert isinstance(first["price"], Unreadable) and str(first["price"]) == "unreadable: decimal.Decimal"
        assert (first["ok"], second, batch.column("score")) == (1, {"ok": 2}, [0.5, 1.0])


def test_a_column_of_an_unknown_kind_is_unreadable_row_by_row(write_data_proto: Any) -> None:
    dates = np.array(["2026-01-01", "2026-01-02"], dtype="M8[D]")
    with open_batch(write_data_proto(None, {"date": dates, "score": np.array([0.5, 1.0])})) as batch:
        assert [str(value) for value in batch.column("date")] == ["unreadable: numpy dtype M8"] * 2


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_unchanged_in_every_protocol(write_data_proto: Any, protocol: int) -> None:
    values = [None, True, -1, 1 << 70, 0.1, float("inf"), "a\u2028\ud800", b"\0\xff", (1, (2,)), [[]], {"a": {1: 2}}]
    values += [OrderedDict(a=1), {1, 2}, "x" * 100_000, b"y" * 300, np.float32(0.5), np.bool_(True), np.str_("np")]
    with open_batch(write_data_proto(None, {"value": object_array(*values)}, {"n": np.int16(-3)}, protocol)) as batch:
        assert batch.column("value") == [*values[:-3], 0.5, True, "np"]
        assert batch.meta == {"n": -3} and type(batch.meta["n"]) is int


@pytest.mark.parametrize("protocol", [4, 5])
def test_numpy_columns_of_every_usual_type_become_plain(write_data_proto: Any, protocol: int) -> None:
    numbers: dict[str, np.ndarray] = {code: np.array([0, 1, 2]).astype(code) for code in "?bhiqBHIQefd"}
    texts = {"U": np.array(["", "中", "three"]), "S": np.array([b"", b"1", b"two"])}
    deep = {"two": np.array([[1, 2], [3, 4], [5, 6]]), "none": np.empty((3, 0), dtype=object)}
    with open_batch(write_data_proto(None, numbers | texts | deep, protocol=protocol)) as batch:
        assert {name: batch.column(name) for name in batch.columns} == {
            name: column.tolist() for name, column in (numbers | texts | deep).items()
        }


def test_a_long_array_inside_a_value_is_unreadable_with_its_shape(write_data_proto: Any) -> None:
    pixels = {"pixel_values": np.zeros((64, 1176), dtype=np.float32), "grid": np.array([1, 8, 8])}
    with open_batch(write_data_proto(None, {"multi_modal_inputs": object_array(pixels)})) as batch:
        (result,) = batch.column("multi_modal_inputs")
        assert str(result["pixel_values"]) == "unreadable: numpy array of shape (64, 1176)"
        assert result["grid"] == [1, 8, 8]


def test_bfloat16_and_nested_rows_of_the_numpy_serialisation_are_read(write_data_proto: Any) -> None:
    half = np.array([[1.5, -2.0], [0.0, 3.0]], dtype="<f4").view("<u2")[:, 1::2].copy()
    rows = [("int64", Size([n]), np.arange(n, dtype="<i8").view("u1")) for n in (3, 0)]
    fields = {"values": ("bfloat16", Size([2, 2]), half.view("u1").reshape(-1)), "responses": ("jagged", rows)}
    with open_batch(write_data_proto(((2,), None, fields), {})) as batch:
        assert batch.tensor("values").tolist() == [[1.5, -2.0], [0.0, 3.0]]
        assert batch.tensor("values", 1).tolist() == [0.0, 3.0]
        assert (batch.fields["responses"].shape, batch.fields["responses"].jagged) == ((2, 3), True)
        assert [batch.tensor("responses", row).tolist() for row in (0, 1)] == [[0, 1, 2], []]


def test_without_an_attention_mask_a_response_ends_with_the_model_s_last_token() -> None:
    fields: dict[str, list[Any]] = {"prompts": [0, 7, 8], "responses": [1, 2, 3, 0], "response_mask": [1, 0, 1, 0]}
    result = extract_row_tokens(fields.get, padded=True)
    assert (result.prompt_ids, result.response_ids, result.response_mask) == ([0, 7, 8], [1, 2, 3], [1, 0, 1])


def test_a_non_tensor_value_of_a_consolidated_tensordict_is_read_without_its_batch_size(tmp_path: Path) -> None:
    """tensordict writes (value, batch size, device), older versions (value, batch size)."""
    size = asm.list_(asm.number(2))
    values = asm.dict_(note=asm.tuple_(asm.dict_(a=asm.number(1)), size, asm.NONE), old=asm.tuple_(asm.text("x"), size))
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(asm.proto(asm.bytes_(build_consolidated(non_tensors=values))))
    with open_batch(path) as batch:
        assert {name: batch.column(name) for name in batch.columns} == {"note": [{"a": 1}] * 2, "old": ["x"] * 2}


def test_a_tensor_that_is_not_contiguous_is_unreadable_and_the_other_fields_are_read(tmp_path: Path) -> None:
    plain = asm.tensor(asm.storage(2, kind="Long"), 2)
    content = asm.tensordict(position_ids=asm.expanded_tensor(asm.storage(2, kind="Long"), 2, 2), score=plain)
    path = tmp_path / "tq_batch.pt"
    path.write_bytes(asm.archive(asm.members(asm.queue_pickle(content), pack("<2q", 7, 8))))
    with open_batch(path) as batch:
        assert (list(batch.fields), batch.numbers("score", 1)) == (["score"], [8])
        assert [str(value) for value in batch.column("position_ids")] == [
            "unreadable: a tensor of shape (2, 2) that is not contiguous"
        ] * 2
