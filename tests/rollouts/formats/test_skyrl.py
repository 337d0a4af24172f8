"""SkyRL's training batches, which hold tokens and no text. Written by its own trainer: data/skyrl."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle.batches import open_tensor_batch
from rollouts.errors import UnreadableDumpError
from rollouts.formats import skyrl_batch
from rollouts.samples.record import Record, SkippedRow
from tests.rollouts.support.trainer_dumps import DATA, read_items

BATCH = DATA / "skyrl/dumped_data/global_step_3_training_input.pkl"
OLDER = DATA / "skyrl/older/dumped_data/global_step_7_training_input.pkl"
OLDER_ROWS = [  # what the script that wrote it gave to the trainer's writer
    ([5, 6, 7], [10, 11], [1, 1], [-0.1, -0.2], [1.0, 1.0]),
    ([8, 9], [12, 13, 14], [1, 0, 1], [-0.3, -0.4, -0.5], [-1.0, -1.0, -1.0]),
]


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_the_rows_are_those_of_the_trainer_without_padding() -> None:
    *records, first, second = read_items(skyrl_batch, BATCH.read_bytes())
    assert (first, second) == (SkippedRow("padding"), SkippedRow("padding"))
    assert [(len(item.prompt_ids), len(item.response_ids), item.group, item.index) for item in records] == [
        (12, 1, "0", 0), (12, 28, "0", 1), (10, 5, "1", 0), (10, 2, "1", 1),
    ]  # fmt: skip
    assert [position for position, trained in enumerate(records[1].response_mask) if not trained] == [2, 3, 4]
    for record, logprob, advantage in zip(records, (-0.1, -0.2, -0.3, -0.4), (1, -1, 1, -1), strict=True):
        assert record.logprobs == pytest.approx([logprob] * len(record.response_ids))
        assert record.ref_logprobs == pytest.approx([-0.7] * len(record.response_ids))
        assert record.advantages == pytest.approx([advantage * 0.7071057] * len(record.response_ids))
        assert (record.textless, record.score) == (True, None)
        assert record.extras["action_log_probs_mean"] == pytest.approx(-0.6, abs=0.01)  # a tensor of bfloat16


def test_older_batches_are_padded_on_the_right_and_their_equal_prompts_are_groups() -> None:
    records = read_items(skyrl_batch, OLDER.read_bytes())
    for record, (prompt, response, mask, logprobs, advantages) in zip(records, OLDER_ROWS, strict=True):
        assert (record.prompt_ids, record.response_ids, record.response_mask) == (prompt, response, mask)
        assert (record.logprobs, record.advantages) == (pytest.approx(logprobs), advantages)
    assert [record.group for record in records] == ["0", "1"]


def test_the_tokenizer_of_the_run_gives_the_text() -> None:
    def decode(rows: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    record, _ = read_items(skyrl_batch, OLDER.read_bytes(), decode_tokens=decode)
    assert (record.prompt, record.response, record.textless) == ("5 6 7", "10 11", False)


def test_the_tensors_are_read_with_their_types_and_the_metadata_with_its_values() -> None:
    with open_tensor_batch(BATCH) as batch:
        assert (batch.rows, batch.meta["pad_size"], batch.meta["policy_prompt_boundaries"]) == (6, 2, [(0, 2), (2, 4)])
        assert (batch.fields["sequences"].dtype, batch.fields["action_log_probs"].dtype) == ("int64", "bfloat16")


@pytest.mark.parametrize("path", [BATCH, OLDER], ids=["now", "older"])
def test_a_damaged_batch_gives_records_or_one_sentence_and_nothing_else(path: Path) -> None:
    body, chance = path.read_bytes(), random.Random(5)
    for _ in range(40):
        broken = bytearray(body)
        for _ in range(chance.randint(1, 8)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        cut = bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])
        try:
            assert all(isinstance(item, (Record, SkippedRow)) for item in read_items(skyrl_batch, cut))
        except UnreadableDumpError as error:
            assert "\n" not in str(error)


def test_code_in_a_batch_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = pickle.dumps(Hostile(mark)) + b"training_batch TrainingInputBatch"
    with pytest.raises(UnreadableDumpError):
        read_items(skyrl_batch, body)
    assert not mark.exists()


@pytest.mark.parametrize("bounds", [None, [(0, 9)], [(0, 2), (1, 4)], [(0, 2), (2,)], [(2, 0)], ["a"], [(0, 1 << 70)]])
def test_invalid_boundaries_give_no_groups(bounds: Any) -> None:
    assert skyrl_batch.find_groups(bounds, 4) == {}
