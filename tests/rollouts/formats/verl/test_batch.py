"""Records of verl's batches: real ones, and small ones with unusual values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import DumpContext, find_artifact_format, select_format
from rollouts.formats.verl import batch as verl_batch
from rollouts.indexing import detokenize
from rollouts.samples.record import Record, SkippedRow
from tests.rolloutdeck.safe_pickle.dumps import Size, write_data_proto
from tests.rollouts.support.push import DUMPS
from tests.rollouts.support.verl_batches import ASYNC, COLOCATED, NUMPY, SHAPE, TOKENIZER, V0, V1, V2

__all__ = ["write_data_proto"]

GEN, TQ = verl_batch.FORMATS


@pytest.fixture
def decode() -> Any:
    decoder = detokenize.load_tokenizer_file(TOKENIZER / "tokenizer.json")
    assert decoder
    return decoder.decode_rows


def read_records(path: Path, form: verl_batch.VerlBatchFormat = GEN, **options: Any) -> list[Record]:
    items = form.read(io.BytesIO(), DumpContext(path.name, path=path, **{"facts": SHAPE, **options}))
    return [item for item in items if isinstance(item, Record)]


def read_texts(path: Path) -> list[tuple[str, str]]:
    rows = map(json.loads, path.read_text().split("\n")[:-1])
    return sorted((row["input"], row["output"]) for row in rows)


@pytest.mark.parametrize(
    ("folder", "form", "jsonl"),
    [
        (V0 / "gen_batch.dp", GEN, "v0/rollout/1.jsonl"),
        (NUMPY / "gen_batch.dp", GEN, "v0/rollout/1.jsonl"),
        (V1 / "0/tq_batch.pt", TQ, "v1/rollout/1.jsonl"),
    ],
)
def test_decoded_batches_are_the_texts_that_verl_wrote(folder: Path, form: Any, jsonl: str, decode: Any) -> None:
    result = read_records(folder, form, decode_tokens=decode)
    assert sorted((item.prompt, item.response) for item in result) == read_texts(DUMPS / jsonl)


def test_a_row_of_v0_has_its_group_its_scores_and_its_tokens_without_padding() -> None:
    result = read_records(V0 / "gen_batch.dp")
    assert [(item.group, item.index) for item in result[:5]] == [("0", 0), ("0", 1), ("0", 2), ("0", 3), ("1", 0)]
    first = result[0]
    assert first.score == pytest.approx(0.1) and first.rewards == {"score": 0.1, "acc": 0.0, "format": 1.0}
    assert first.extras == {"pred": "447", "num_turns": 2, "min_global_steps": 1, "max_global_steps": 1}
    assert (first.truncated, first.textless, first.policy_version) == (False, True, 1)
    assert first.response_ids and 0 not in first.response_ids and len(first.response_ids) == len(first.logprobs or ())
    assert first.messages and [message["role"] for message in first.messages] == ["system", "user"]


def test_responses_as_long_as_the_run_allows_are_truncated() -> None:
    result = read_records(V0 / "gen_batch.dp", facts={})
    assert {item.truncated for item in result if len(item.response_ids or ()) < 256} == {False}
    shorter = read_records(V1 / "0/tq_batch.pt", TQ, facts={"max_response_length": 20})
    assert {item.truncated for item in shorter} == {len(item.response_ids or ()) >= 20 for item in shorter}
    assert {item.truncated for item in read_records(V1 / "0/tq_batch.pt", TQ, facts={})} == {None}


def test_a_row_of_v1_has_its_labels_and_the_trajectory_index_and_turn_of_its_key() -> None:
    first = read_records(V1 / "0/tq_batch.pt", TQ)[0]
    assert (first.trajectory, first.index, first.turn) == (f"{first.group}_0", 0, 0)
    assert (first.ground_truth, first.data_source) == ("448", "openai/gsm8k")
    assert set(first.rewards) == {"score", "acc", "format"} and first.metrics and "compute_score" in first.metrics
    assert set(first.extras["extra_info"]) == {"split", "language", "question", "answer"}
    assert first.extras["dataset_index"] == 0


def test_extra_info_is_stored_without_values_that_the_record_has() -> None:
    info = {"index": 7, "split": "train", "agent_name": "tool", "tools_kwargs": {"calc": {"limit": 3}}, "pred": "9"}
    values = {"index": 7, "agent_name": "tool", "tools_kwargs": {"calc": {"limit": 3}}, "pred": "5"}
    stored = {key for key in info if not verl_batch.is_repeated(key, info[key], values)}
    assert stored == {"split", "agent_name", "tools_kwargs", "pred"}


def test_a_fully_async_batch_is_one_prompt() -> None:
    assert {(item.group, len(item.response_ids or ()) > 0) for item in read_records(ASYNC / "gen_batch.dp")} == {
        ("0", True)
    }


def test_a_batch_without_streamed_rewards_has_its_labels_and_no_score() -> None:
    result = read_records(COLOCATED / "gen_batch.dp", facts={"samples_per_prompt": 2})
    assert {item.score for item in result} == {None}
    assert all(item.group and item.data_source for item in result)


def test_the_labels_of_verl_0_8_are_read_from_new_batch() -> None:
    without_labels = read_records(V2 / "gen_batch.dp")
    with_labels = read_records(V2 / "gen_batch.dp", sibling_paths={"new_batch.dp": V2 / "new_batch.dp"})
    assert {item.ground_truth for item in without_labels} == {None}
    assert len({item.group for item in with_labels}) == 8 and all(item.ground_truth for item in with_labels)


def test_labels_for_another_number_of_rows_are_ignored() -> None:
    result = read_records(ASYNC / "gen_batch.dp", sibling_paths={"new_batch.dp": V2 / "new_batch.dp"})
    assert {item.ground_truth for item in result} == {None}


def test_a_batch_that_is_sent_as_a_dump_is_refused_with_a_hint_to_log_artifact() -> None:
    with pytest.raises(UnreadableDumpError, match="log_artifact"):
        list(GEN.read(io.BytesIO(b""), DumpContext("gen_batch.dp")))


def test_a_truncated_batch_is_refused_with_its_file_name(tmp_path: Path) -> None:
    path = tmp_path / "gen_batch.dp"
    path.write_bytes((V0 / "gen_batch.dp").read_bytes()[:4000])
    with pytest.raises(UnreadableDumpError, match=r"gen_batch\.dp cannot be read"):
        read_records(path)


def test_only_batch_files_have_an_artifact_format() -> None:
    assert [find_artifact_format(name) for name in ("gen_batch.dp", "tq_batch.pt", "new_batch.dp", "meta.json")] == [
        "verl-gen-batch", "verl-tq-batch", "", "",
    ]  # fmt: skip
    assert select_format("x", b"", "verl-tq-batch").name == "verl-tq-batch"


@pytest.fixture
def write_batch(write_data_proto: Any) -> Iterator[Any]:
    """Returns a function that writes a batch of two rows with the given columns."""

    def write(columns: dict[str, list[Any]], **tensors: np.ndarray[Any, Any]) -> Path:
        all_tensors = {
            "prompts": np.array([[0, 5], [6, 7]]),
            "responses": np.array([[8, 9, 0], [10, 0, 0]]),
            "attention_mask": np.array([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]),
            "response_mask": np.array([[1, 0, 0], [1, 0, 0]]),
            **tensors,
        }
        parts = {
            name: (str(array.dtype), Size(array.shape), np.frombuffer(array.tobytes(), np.uint8))
            for name, array in all_tensors.items()
        }
        arrays = {name: np.array([None, *values], object)[1:] for name, values in columns.items()}
        return Path(write_data_proto((Size((2,)), None, parts), arrays, {"reward_extra_keys": ["acc", "odd"]}))

    yield write


def test_tokens_of_tools_keep_their_mask(write_batch: Any) -> None:
    first, second = read_records(write_batch({}))
    assert (first.prompt_ids, first.response_ids, first.response_mask) == ([5], [8, 9], [1, 0])
    assert (second.prompt_ids, second.response_ids) == ([6, 7], [10])


def test_values_that_are_no_numbers_are_unknown(write_batch: Any) -> None:
    logprobs = np.array([[np.nan, -0.5, 0], [-np.inf, 0, 0]], np.float32)
    scores = np.array([[0, np.nan, 0], [1, 0, 0]], np.float32)
    columns = {"acc": [float("nan"), True], "odd": ["a", None]}
    first, second = read_records(write_batch(columns, rollout_log_probs=logprobs, rm_scores=scores))
    assert (first.logprobs, second.logprobs) == ([None, -0.5], [None])
    assert (first.score, second.score) == (None, 1.0)
    assert (first.rewards, second.rewards) == ({"acc": None}, {"acc": 1.0})
    assert (first.extras, second.extras) == ({"odd": "a"}, {})


def test_a_batch_with_invalid_token_ids_is_refused(write_batch: Any) -> None:
    for wrong in (-1, 2**31):
        with pytest.raises(UnreadableDumpError, match="invalid token ids"):
            read_records(write_batch({}, responses=np.array([[wrong, 9, 0], [10, 0, 0]])))


def test_values_that_are_no_json_are_converted_or_left_out(write_batch: Any) -> None:
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    columns = {
        "raw_prompt": [[{"role": "user", "content": [{"type": "image"}, {"text": "what?"}]}], "no messages"],
        "data_source": [7, "gsm8k"],
        "reward_model": [None, {"ground_truth": {"a": 1}}],
        "own": [{"deep": deep, "bytes": b"abc", 1: (1, 2)}, 2**70],
        "empty": [[], {}],
    }
    first, second = read_records(write_batch(columns))
    assert first.prompt == "user\n<image>what?\nassistant\n" and (second.prompt, second.messages) == (
        "no messages",
        None,
    )
    assert (first.data_source, second.data_source, second.ground_truth) == (None, "gsm8k", '{"a":1}')
    assert first.extras["own"]["bytes"] == "<3 bytes>" and first.extras["own"]["1"] == [1, 2]
    assert "…" in json.dumps(first.extras, ensure_ascii=False) and second.extras == {"own": str(2**70)}


def test_padding_rows_of_a_batch_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from rolloutdeck.safe_pickle.batches.batch import RolloutBatch

    real = RolloutBatch.tags.func  # type: ignore[attr-defined]
    monkeypatch.setattr(
        RolloutBatch, "tags", property(lambda self: [{**real(self)[0], "is_padding": True}, *real(self)[1:]])
    )
    items = list(TQ.read(io.BytesIO(), DumpContext("tq_batch.pt", path=V1 / "0/tq_batch.pt")))
    assert items[0] == SkippedRow("padding") and len(items) == 32
