"""Special cases of ROLL's dumps. Real dumps are tested in test_trainers.py and test_independent.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from rollouts.formats.roll import jsonl as roll_jsonl
from rollouts.formats.roll import mock as roll_mock
from rollouts.samples.record import Record
from tests.rollouts.support.trainer_dumps import ROLL, encode_columns, read_items, read_records


def test_one_line_of_columns_gives_a_record_per_row() -> None:
    body = encode_columns(
        id=["7", "7", "8"], domain=["math"] * 3, prompt=["q", "q", "r"], messages=['[{"role": "user"}]'] * 3,
        responses=["a", "b", ""], scores=[1.0, 0.0, 0.5], ground_truth=["4"] * 3, source=["gsm8k"] * 3,
        sampling_params=['{"top_p": 0.9}'] * 3, difficulty=["0.5"] * 3, case_type=[""] * 3, global_step=[1] * 3,
    )  # fmt: skip
    first, second, third = read_records(roll_jsonl, body)
    assert [(x.group, x.index, x.response, x.score) for x in (first, second, third)] == [
        ("7", 0, "a", 1.0), ("7", 1, "b", 0.0), ("8", 0, "", 0.5),
    ]  # fmt: skip
    assert (first.ground_truth, first.data_source) == ("4", "gsm8k")
    assert first.extras == {"domain": "math", "sampling_params": {"top_p": 0.9}, "difficulty": "0.5"}


def test_prompts_of_two_domains_with_one_id_are_two_groups() -> None:
    body = encode_columns(
        id=["1", "1"], domain=["math", "code"], prompt=["q", "r"], responses=["a", "b"], scores=[1, 0]
    )
    assert [item.group for item in read_records(roll_jsonl, body, step=None)] == ["1", "1.code"]


def test_columns_of_the_data_set_are_optional() -> None:
    (record,) = read_records(roll_jsonl, encode_columns(prompt=["q"], responses=["a"]), step=None)
    assert (record.group, record.score, record.extras) == (None, None, {})


def test_a_column_of_another_length_is_left_out_and_reported() -> None:
    problem, record = read_items(
        roll_jsonl, encode_columns(prompt=["q"], responses=["a"], scores=[1.0, 2.0], global_step=[1])
    )
    assert problem.repaired and "`scores` has 2 values, not 1" in problem.reason
    assert record.score is None


def test_a_trajectory_of_an_agent_is_its_messages_reward_and_end() -> None:
    data = {
        "trajectory_id": "t1", "env_info": {"group_id": 3, "tag": "sokoban", "mode": "val"},
        "reward_info": {"episode_reward": 1.0}, "failure_info": {"stop_reason": "MAX_STEPS"},
        "length_info": {"truncated": True},
    }  # fmt: skip
    turns = [
        {"role": "user", "content": "push"}, {"role": "assistant", "content": "up"},
        {"role": "user", "content": "moved"}, {"role": "assistant", "content": "left"},
    ]  # fmt: skip
    body = encode_columns(
        trajectory_data=[json.dumps(data)], messages=[json.dumps(turns)], tools=['[{"name": "move"}]'],
        exp_name=["run"], global_step=[1],
    )  # fmt: skip
    (record,) = read_records(roll_jsonl, body)
    assert (record.prompt, record.response) == ("user\npush\nassistant\n", "up\nuser\nmoved\nassistant\nleft\n")
    assert (record.trajectory, record.group, record.score, record.data_source) == ("t1", "3", 1.0, "sokoban")
    assert (record.finish_reason, record.truncated, record.tools) == ("MAX_STEPS", True, [{"name": "move"}])
    assert record.extras == {"trajectory_data": data, "exp_name": "run", "mode": "val"}


def test_each_episode_of_an_environment_is_a_group_of_its_own_in_both_files() -> None:
    """ROLL compares the trajectories with one `traj_group_id`; `group_id` names the environments that run together."""
    episodes = [{"env_id": env, "group_id": 3, "tag": "sokoban", "seed": 42, "episode_id": at} for env, at in EPISODES]
    names = [f"sokoban_3_{at}_42" for _, at in EPISODES]
    turns = json.dumps([{"role": "user", "content": "push"}, {"role": "assistant", "content": "up"}])
    body = encode_columns(
        trajectory_data=[json.dumps({"env_info": env}) for env in episodes], messages=[turns] * len(episodes)
    )
    assert [record.group for record in read_records(roll_jsonl, body, step=None)] == names
    assert read_groups(traj_group_id=names, group_ids=[3] * 4) == names
    assert read_groups(group_ids=[3] * 4) == ["3"] * 4


EPISODES = [(0, 0), (1, 0), (0, 1), (1, 1)]


def read_groups(**values: list[Any]) -> list[str | None]:
    """The groups of the rows of a batch with these columns."""
    reader, records = object.__new__(roll_mock.RollBatchReader), []
    reader.groups = roll_jsonl.GroupAssigner()
    for row in range(4):
        records.append(Record())
        reader.set_position(records[-1], {name: column[row] for name, column in values.items()})
    return [record.group for record in records]


def test_a_batch_of_rollout_mock_has_tokens_without_padding_and_one_log_prob_per_token() -> None:
    records = read_records(roll_mock, (ROLL / "mock/train/step_000001.pkl").read_bytes())
    assert len(records) == 32 and all(record.textless for record in records)
    assert all(len(record.response_ids or ()) == len(record.logprobs or ()) for record in records)
    assert {round(value, 4) for record in records for value in record.logprobs or () if value} == {-0.3}
    assert all(
        None not in (record.logprobs or ()) and 0 not in (record.logprobs or ()) for record in records
    )  # as padding has
    assert all((record.prompt_ids or [0])[0] == 1 for record in records)  # the first token of the template


def test_the_rows_of_a_batch_are_those_of_the_dump_of_its_step_in_order() -> None:
    result = read_records(roll_jsonl, (ROLL / "rlvr_jsonl/rollout_dump_data.step_1.jsonl").read_bytes())
    batch = read_records(roll_mock, (ROLL / "mock/train/step_000001.pkl").read_bytes())
    assert [(x.group, x.trajectory, x.prompt, x.score) for x in batch] == [
        (x.group, x.trajectory, x.prompt, x.score) for x in result
    ]


def test_bare_nan_and_unusual_line_ends_in_columns_are_read() -> None:
    body = b'{"prompt": ["a\xe2\x80\xa8b"], "responses": ["c\\u0000\xc2\x85"], "scores": [NaN], "global_step": [1]}\n'
    (record,) = read_records(roll_jsonl, body)
    assert (record.prompt, record.response, record.score) == ("a\u2028b", "c\x00\x85", None)


def test_a_column_with_broken_json_does_not_affect_the_other_columns() -> None:
    (record,) = read_records(
        roll_jsonl, encode_columns(prompt=["q"], responses=["a"], messages=["{broken"], tag=['["x"]'], global_step=[1])
    )
    assert (record.messages, record.extras) == (None, {"tag": ["x"]})


def test_padding_on_the_left_of_a_batch_is_not_part_of_the_prompt() -> None:
    tensors = {
        "input_ids": [0, 0, 5, 6, 7, 8, 0], "attention_mask": [0, 0, 1, 1, 1, 1, 0],
        "response_mask": [0, 0, 0, 0, 1, 1, 0], "infer_logprobs": [0.0, 0.0, -0.1, -0.2, -0.3, 0.0],
    }  # fmt: skip
    reader, record = object.__new__(roll_mock.RollBatchReader), Record()
    reader.batch = SimpleNamespace(numbers=lambda name, row: tensors.get(name))  # type: ignore[assignment]
    reader.set_tokens(record, 0)
    assert (record.prompt_ids, record.response_ids, record.response_mask) == ([5, 6], [7, 8], [1, 1])
    assert record.logprobs == [-0.2, -0.3]
