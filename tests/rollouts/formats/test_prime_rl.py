"""prime-rl writes all episodes into numbered chunks; only those of the given split are read."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rollouts.formats import DumpContext, select_format
from rollouts.formats.verifiers import get_episode_split
from rollouts.samples.record import Record, SkippedRow
from tests.rollouts.real_dumps import DUMPS

ROWS = (DUMPS / "verifiers/prime/rollouts/step_3/train/all/traces.jsonl").read_bytes()
CHUNK = "run/traces/00000.jsonl"


def encode_chunk() -> bytes:
    """Episodes of a training step, and the same episodes as an evaluation of a later step."""
    train_rows = [json.loads(line) for line in ROWS.splitlines()]
    eval_rows = [{**row, "run": {**row["run"], "work": {"type": "eval", "step": 7}}} for row in train_rows]
    return b"".join(json.dumps(row).encode() + b"\n" for row in (*train_rows, *eval_rows))


def count_items(name: str, split: str) -> tuple[Counter[int], Counter[str]]:
    """Counts samples by step, and skipped rows by reason."""
    body = encode_chunk()
    form = select_format(name, body[:65536])
    assert form.name == "verifiers"
    items = list(form.read(io.BytesIO(body), DumpContext(name, split)))
    return (
        Counter(item.extras["step"] for item in items if isinstance(item, Record)),
        Counter(item.reason for item in items if isinstance(item, SkippedRow)),
    )


@pytest.mark.parametrize(("split", "step", "other"), [("train", 3, "eval"), ("eval", 7, "train")])
def test_episodes_of_the_other_split_are_left_out_and_counted(split: str, step: int, other: str) -> None:
    samples, left_out = count_items(CHUNK, split)
    assert set(samples) == {step}
    assert [count for reason, count in left_out.items() if f"use --split {other} to read it" in reason] == [3]


def test_a_file_of_episodes_that_is_no_chunk_is_read_whole() -> None:
    assert set(count_items("out/traces.jsonl", "eval")[0]) == {3, 7}


@pytest.mark.parametrize(
    ("episode", "split"),
    [
        ({"traces": [{}, {"info": {"kind": "eval"}}], "run": {"work": {"type": "train"}}}, "eval"),  # the stamp
        ({"traces": [], "run": {"type": "train", "work": {"type": "eval"}}}, "eval"),
        ({"traces": [{"info": None}, 3], "run": {"type": "train", "work": "x"}}, "train"),
        ({"traces": None, "run": ["train"]}, ""),
        ({"traces": [{"info": {"kind": ["eval"]}}]}, ""),
    ],
)
def test_the_split_of_an_episode_is_read_from_its_traces_or_its_run(episode: dict[str, Any], split: str) -> None:
    assert get_episode_split(episode) == split


def read_first_record(change: Callable[[dict[str, Any]], object]) -> Record:
    """The first sample, after `change` was applied to each of its messages."""
    episode = json.loads(ROWS.splitlines()[0])
    for node in episode["traces"][0]["nodes"]:
        change(node)
    body = json.dumps(episode).encode()
    items = select_format("traces.jsonl", body).read(io.BytesIO(body), DumpContext("traces.jsonl"))
    return next(item for item in items if isinstance(item, Record))


def test_tokens_are_left_out_if_a_turn_of_the_model_lacks_them() -> None:
    seen: list[dict[str, Any]] = []

    def drop_first_answer(node: dict[str, Any]) -> None:
        if node["sampled"] and not seen:
            seen.append(node)
            node |= {"token_ids": [], "mask": [], "logprobs": []}

    record = read_first_record(drop_first_answer)
    assert seen and record.response
    assert (record.prompt_ids, record.response_ids, record.response_mask, record.logprobs) == (None,) * 4


def test_tokens_of_a_prompt_may_be_stored_with_the_answer_after_it() -> None:
    """The renderer did not assign tokens to messages, so all are stored with the answer."""
    record = read_first_record(lambda node: None if node["sampled"] else node.update(token_ids=[], mask=[]))
    assert record.response_ids and record.response_mask and 1 in record.response_mask


def test_tokens_without_a_mask_are_shown() -> None:
    """All tokens of a sampled message are then the model's."""
    episode = json.loads(ROWS.splitlines()[0])
    for node in episode["traces"][0]["nodes"]:
        node["mask"] = []
    body = json.dumps(episode).encode()
    form = select_format("traces.jsonl", body)
    (first, *_) = [
        item for item in form.read(io.BytesIO(body), DumpContext("traces.jsonl")) if isinstance(item, Record)
    ]
    assert first.prompt_ids == [1, 2, 3, 4] and first.response_ids and first.response_ids[:3] == [5, 6, 7]
    assert first.response_mask and first.response_mask[:3] == [1, 1, 1]
