"""How the dumps of one step are merged if a trainer writes several of them or overwrites one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.contrib.auth.models import User

from rollouts.models import Dump, Label, Run, Sample, ViewedSample
from rollouts.samples import bodies
from tests.rollouts.support.push import index_file, list_samples
from tests.rollouts.support.verl_batches import add_tokenizer, index_waiting_dumps
from tests.support import builders

DATA = Path(__file__).parents[2] / "data"
pytestmark = pytest.mark.django_db


def read_data(name: str) -> bytes:
    return (DATA / name).read_bytes()


def encode_completions(*answers: tuple[str, str, float], step: int = 3, **more: list[Any]) -> bytes:
    """A file of TRL with rows of (prompt, completion, reward)."""
    prompts, texts, rewards = zip(*answers, strict=True)
    table = pa.table({"step": [step] * len(answers), "prompt": prompts, "completion": texts, "acc": rewards, **more})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


FILE = {"source": "completions/completions_00003.parquet"}
TRAIN = [("2+2?", "4", 1.0), ("2+2?", "5", 0.0), ("3+3?", "6", 1.0), ("3+3?", "7", 0.0)]
EVAL = [("9+9?", "18", 1.0), ("9+9?", "19", 0.0)]


def test_an_eval_that_overwrites_the_train_rows_of_a_step_adds_its_own(run: Run) -> None:
    index_file(run, encode_completions(*TRAIN), 3, **FILE)
    before = {sample.id for sample in list_samples(run)}
    index_file(run, encode_completions(*TRAIN[2:], *EVAL), 3, **FILE)
    after = list_samples(run)
    assert {sample.id for sample in after} > before
    assert [sample.tail for sample in after] == ["4", "5", "6", "7", "18", "19"]
    assert {dump.state for dump in run.dumps.all()} == {Dump.State.INDEXED}


def test_the_order_in_which_the_two_are_indexed_does_not_matter(run: Run) -> None:
    index_file(run, encode_completions(*TRAIN[2:], *EVAL), 3, **FILE)
    index_file(run, encode_completions(*TRAIN), 3, **FILE)
    assert sorted(sample.tail for sample in list_samples(run)) == ["18", "19", "4", "5", "6", "7"]


def test_a_validation_of_rolls_agents_that_overwrites_the_file_of_its_step_adds_its_own(run: Run) -> None:
    for mode, answer in (("train", "4"), ("val", "18")):
        messages = [{"role": "user", "content": f"{mode}?"}, {"role": "assistant", "content": answer}]
        values = {"trajectory_id": mode, "env_info": {"mode": mode}, "reward_info": {"episode_reward": 1.0}}
        columns = {"trajectory_data": [json.dumps(values)], "messages": [json.dumps(messages)], "global_step": [5]}
        index_file(run, json.dumps(columns).encode() + b"\n", 5, source="rollout_dump_data.step_5.jsonl")
    assert [sample.tail for sample in list_samples(run)] == ["4", "18"]
    assert {dump.state for dump in run.dumps.all()} == {Dump.State.INDEXED}


def test_rows_that_are_in_the_files_of_two_steps_are_samples_of_both(run: Run) -> None:
    for step in (1, 2):
        index_file(run, encode_completions(*TRAIN, step=step), step, source=f"completions_{step:05d}.parquet")
    assert [len(list_samples(run, step__step=step)) for step in (1, 2)] == [4, 4]
    assert Sample.objects.count() == 8


def test_a_train_dump_gives_the_samples_of_its_rollout_their_advantages_and_adds_none(run: Run) -> None:
    index_file(run, read_data("slime/rollout_data/0.pt"), 0, source="rollout_data/0.pt", step_kind="rollout_id")
    index_file(run, read_data("slime/train_data/0_0.pt"), 0, source="train_data/0_0.pt", step_kind="rollout_id")
    result = list_samples(run)
    assert len(result) == 32
    assert all(sample.advantage is not None for sample in result)
    full = bodies.load_bodies([result[5]])[result[5].id]
    assert full.extras["normalized_reward"] == pytest.approx(result[5].advantage)
    assert len(full.advantages or ()) == len(full.response_ids or ())


def test_a_train_dump_that_comes_first_shows_its_samples_until_the_rollout_is_there(run: Run) -> None:
    index_file(run, read_data("slime/train_data/0_0.pt"), 0, source="train_data/0_0.pt")
    assert len(list_samples(run)) == 32
    index_file(run, read_data("slime/rollout_data/0.pt"), 0, source="rollout_data/0.pt")
    result = list_samples(run)
    assert len(result) == 32
    assert all(sample.tail and sample.advantage is not None for sample in result)


def test_train_dumps_of_several_ranks_without_their_rollout_keep_all_rows(run: Run) -> None:
    for rank in (0, 1):
        index_file(run, read_data(f"miles/train_data/0_{rank}.pt"), 0, source=f"train_data/0_{rank}.pt")
    assert len(list_samples(run)) == 4
    ids = {sample.id for sample in list_samples(run)}
    index_file(run, read_data("miles/train_data/0_0.pt"), 0, source="train_data/0_0.pt")
    assert {sample.id for sample in list_samples(run)} == ids


def test_samples_without_text_are_one_group_if_their_prompt_tokens_are_equal(run: Run) -> None:
    index_file(run, read_data("slime/train_data/0_0.pt"), 0, source="train_data/0_0.pt")
    assert sorted(Counter(sample.group for sample in list_samples(run)).values()) == [4] * 8


def test_a_flag_stays_on_its_sample_when_the_tokenizer_gives_it_a_text(run: Run, owner: User) -> None:
    index_file(run, read_data("roll/mock/train/step_000001.pkl"), 1, source="mock/train/step_000001.pkl")
    sample = list_samples(run)[5]
    builders.flag_row(sample, owner, reason="loop")
    ViewedSample.objects.create(sample=sample.pk, run=run, user=owner)
    add_tokenizer(run)
    index_waiting_dumps(run)
    new = list_samples(run)[5]
    assert new.tail and new.pk != sample.pk and new.ordinal == sample.ordinal
    assert [flag.sample for flag in Label.objects.all()] == [viewed.sample for viewed in ViewedSample.objects.all()]
    assert Label.objects.get().sample == new.pk and new.step.flags == 1


def test_the_step_of_a_file_without_a_step_in_its_name_is_read_from_the_file(run: Run) -> None:
    assert index_file(run, read_data("slime/rollout_data/2.pt"), None, source="dump.pt").step == 2
    assert index_file(run, encode_completions(*TRAIN, step=7), None, source="a/completions_00003.parquet").step == 7
    assert index_file(run, read_data("roll/mock/train/step_000001.pkl"), None, source="kept.pkl").step == 1
    assert (
        index_file(run, read_data("roll/agentic_jsonl/rollout_dump_data.step_1.jsonl"), None, source="a.jsonl").step
        == 1
    )


def test_the_step_of_a_sample_is_not_stored_as_an_extra_too(run: Run) -> None:
    dump = index_file(run, read_data("nemo_gym/math_trajectory_collection.jsonl"), None, source="rollouts.jsonl")
    assert dump.step == 0
    assert all("step" not in full.extras for full in bodies.load_bodies(list_samples(run)).values())


def test_a_batch_of_rollout_mock_joins_the_rows_of_its_step_and_adds_tokens(run: Run) -> None:
    index_file(
        run, read_data("roll/rlvr_jsonl/rollout_dump_data.step_1.jsonl"), 1, source="rollout_dump_data.step_1.jsonl"
    )
    index_file(run, read_data("roll/mock/train/step_000001.pkl"), 1, source="mock/train/step_000001.pkl")
    result = list_samples(run)
    assert len(result) == 32
    assert all(sample.tokens is not None and (sample.tail or sample.chars == 0) for sample in result)
    full = bodies.load_bodies([result[3]])[result[3].id]
    assert len(full.logprobs or ()) == len(full.response_ids or ()) == result[3].tokens


def test_a_batch_with_tokens_only_has_text_after_the_tokenizer_arrives(run: Run) -> None:
    index_file(run, read_data("roll/mock/train/step_000001.pkl"), 1, source="mock/train/step_000001.pkl")
    assert {sample.tail for sample in list_samples(run)} == {""}
    add_tokenizer(run)
    index_waiting_dumps(run)
    result = list_samples(run)
    values = index_file(run, read_data("roll/rlvr_jsonl/rollout_dump_data.step_1.jsonl"), 2, source="r.jsonl")
    assert [sample.tail for sample in result] == [sample.tail for sample in list_samples(run, dump=values)]
