"""What the dumps of TRL, slime and ROLL hold that is easy to read wrongly. Their real dumps are in test_formats.py."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollouts import storage
from rollouts.errors import UnreadableDump
from rollouts.formats import (
    HEAD_BYTES,
    Format,
    Told,
    pick,
    roll_jsonl,
    roll_mock,
    slime_rollout,
    slime_train,
    trl_completions,
)
from rollouts.records import Problem, Record
from tests.rolloutdeck.safe import assembler as asm

DATA = Path(__file__).parents[1] / "data"
TRL, SLIME, ROLL = DATA / "trl", DATA / "slime", DATA / "roll"
REAL: dict[Path, Format] = {
    TRL / "plain/completions/completions_00004.parquet": trl_completions,
    TRL / "trl_1.9.2/completions/completions_00004.parquet": trl_completions,
    SLIME / "rollout_data/0.pt": slime_rollout,
    SLIME / "rollout_data/eval_0.pt": slime_rollout,
    SLIME / "train_data/0_0.pt": slime_train,
    ROLL / "rlvr_jsonl/rollout_dump_data.step_1.jsonl": roll_jsonl,
    ROLL / "agentic_jsonl/rollout_dump_data.step_1.jsonl": roll_jsonl,
    ROLL / "mock/train/step_000001.pkl": roll_mock,
}
BINARY = {path: form for path, form in REAL.items() if form is not roll_jsonl}


def read(form: Format, body: bytes, **told: Any) -> list[Any]:
    return list(form.read(io.BytesIO(body), Told(**{"step": 1, **told})))


def kept(form: Format, body: bytes, **told: Any) -> list[Record]:
    found = read(form, body, **told)
    assert all(isinstance(one, Record) for one in found), found
    return found


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def torch_file(value: Any) -> bytes:
    """As `torch.save` writes plain values."""
    return asm.archive(asm.members(pickle.dumps(value, protocol=2)))


def sample(**keys: Any) -> dict[str, Any]:
    """A `Sample.to_dict()` of slime."""
    return {
        "group_index": 0, "index": 0, "rollout_id": 0, "prompt": "2+2?", "tokens": [5, 6, 7], "response": "4",
        "response_length": 1, "label": "4", "reward": 1.0, "loss_mask": None, "rollout_log_probs": [-0.5],
        "weight_versions": ["3"], "status": "completed", "remove_sample": False, "metadata": {}, **keys,
    }  # fmt: skip


def rollout(*samples: Any, step: int = 1) -> bytes:
    return torch_file({"rollout_id": step, "samples": list(samples)})


def trained(*samples: dict[str, Any], **more: Any) -> bytes:
    told = {"tokens": [5, 6, 7], "response_lengths": 1, "rewards": 0.5, "truncated": 0}
    return torch_file(
        {"format_version": 2, "rollout_id": 1, "rank": 0, "samples": [{**told, **one} for one in samples], **more}
    )


def columns(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


@pytest.mark.parametrize("path", REAL, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_real_dump_is_recognised_by_its_beginning(path: Path) -> None:
    assert pick(path.name, path.read_bytes()[:HEAD_BYTES]) is REAL[path]


@pytest.mark.parametrize("path", BINARY, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_stream_gives_what_the_file_gives_and_leaves_no_copy_behind(path: Path) -> None:
    form, name = BINARY[path], path.name
    assert read(form, path.read_bytes(), filename=name) == read(form, b"", filename=name, path=path) != []
    assert [one for one in storage.incoming().parent.iterdir() if one.is_file()] == []


@pytest.mark.parametrize("path", BINARY, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_damaged_file_gives_records_or_one_sentence_and_nothing_else(path: Path) -> None:
    body, chance = path.read_bytes(), random.Random(7)
    for _ in range(25):
        broken = bytearray(body)
        for _ in range(chance.randint(1, 8)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        cut = bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])
        try:
            assert all(isinstance(one, (Record, Problem)) for one in read(BINARY[path], cut, filename=path.name))
        except UnreadableDump as error:
            assert "\n" not in str(error) and str(error).endswith(".")


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_code_in_a_rollout_is_not_run_and_the_other_values_are_read(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (record,) = kept(slime_rollout, rollout(sample(metadata={"image": Hostile(mark), "source_name": "gsm8k"})))
    assert not mark.exists()
    assert (record.response, record.data_source) == ("4", "gsm8k")
    assert record.extras["metadata"]["image"] == "<unreadable: posix.mkdir>"


def test_code_in_place_of_a_batch_is_not_run_and_refused(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = pickle.dumps(Hostile(mark)) + b"roll.distributed.scheduler.protocol"
    with pytest.raises(UnreadableDump, match=r"posix\.mkdir"):
        read(roll_mock, body)
    assert not mark.exists()


# TRL


def test_texts_and_message_lists_of_one_prompt_are_the_same_prompt_and_answer() -> None:
    name = "completions/completions_00004.parquet"
    text, chat = (kept(trl_completions, (TRL / tree / name).read_bytes(), step=4) for tree in ("trl_1.9.2", "plain"))
    assert [one.prompt for one in text] == [one.prompt for one in chat]
    assert text[0].messages is None and chat[0].messages and chat[0].messages[1]["role"] == "user"


def test_a_file_that_an_eval_mixed_up_holds_rows_of_both() -> None:
    path = TRL / "eval_mixed_with_train/completions/completions_00003.parquet"
    records = kept(trl_completions, path.read_bytes(), step=3)
    assert len(records) == 8
    sizes = Counter(one.prompt for one in records).values()
    assert sorted(sizes) == [2, 2, 4]  # a group of 4 that was trained on, two of 2 from the eval


def test_an_answer_with_tools_is_told_turn_by_turn_without_the_keys_that_only_others_have() -> None:
    turns = [
        {"role": "assistant", "content": "let me see", "name": None},
        {"role": "tool", "content": "42", "name": "calculator"},
        {"role": "assistant", "content": "42", "name": None},
    ]
    body = parquet(step=[1], prompt=[[{"role": "user", "content": "6*7?"}]], completion=[turns])
    (record,) = kept(trl_completions, body)
    assert record.response == "let me see\ntool\n42\nassistant\n42\n"
    assert record.messages == [{"role": "user", "content": "6*7?"}]


def test_the_score_is_the_sum_of_the_rewards_where_the_advantages_agree() -> None:
    body = parquet(
        step=[1] * 3, prompt=["q"] * 3, completion=list("abc"), acc=[1.0, 0.0, None], style=[0.5, 0.25, None],
        pred=["x", "y", "z"], advantage=[1.0, -1.0, None],
    )  # fmt: skip
    one, two, three = kept(trl_completions, body)
    assert [one.score, two.score, three.score] == [1.5, 0.25, None]
    assert (one.rewards, one.advantages, three.advantages) == ({"acc": 1.0, "style": 0.5}, [1.0], None)
    assert (one.extras, three.rewards) == ({"pred": "x"}, {"acc": None, "style": None})


@pytest.mark.parametrize("advantages", [[-1.0, 1.0], [0.0, 0.0]])
def test_there_is_no_score_where_a_number_of_the_run_or_a_weight_makes_the_sum_another(advantages: list[float]) -> None:
    body = parquet(
        step=[1] * 2, prompt=["q"] * 2, completion=["a", "b"], acc=[1.0, 0.0], seconds=[3.0, 1.0], advantage=advantages
    )
    assert [(one.score, one.rewards["seconds"]) for one in kept(trl_completions, body)] == [(None, 3.0), (None, 1.0)]


def test_control_characters_and_broken_text_of_a_random_model_are_kept() -> None:
    body = parquet(step=[1], prompt=["q\x00"], completion=["\ufffd\x1d\u2028"], pred=["x"])
    (record,) = kept(trl_completions, body)
    assert (record.prompt, record.response) == ("q\x00", "\ufffd\x1d\u2028")


def test_text_that_is_not_utf8_is_shown_with_the_replacement_sign() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())
    (record,) = kept(trl_completions, parquet(step=[1], prompt=["q"], completion=broken))
    assert record.response == "caf\ufffd"


def test_a_row_without_a_prompt_is_told_and_the_others_are_kept() -> None:
    problem, record = read(trl_completions, parquet(step=[1, 1], prompt=[None, "q"], completion=["a", "b"]))
    assert (problem.line, record.response) == (1, "b")


@pytest.mark.parametrize(
    "body", [parquet(question=["q"]), parquet(prompt=["q"])[:0], parquet(prompt=[], completion=[])]
)
def test_a_parquet_file_without_completions_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableDump, match=r"Parquet"):
        read(trl_completions, body)


# slime


def test_prompts_are_texts_in_one_rollout_and_messages_in_another() -> None:
    text, chat = (kept(slime_rollout, (SLIME / f"rollout_data/{step}.pt").read_bytes())[0] for step in (0, 2))
    assert text.messages is None and text.prompt.startswith("<|im_start|>system")
    assert chat.messages and chat.prompt.startswith("system\n")


@pytest.mark.parametrize(
    ("reward", "score", "rewards", "extras"),
    [
        (0.5, 0.5, {}, {}),
        (None, None, {}, {}),
        (float("nan"), None, {}, {}),
        ({"score": 0.1, "acc": False, "pred": "209"}, 0.1, {"acc": 0.0}, {"pred": "209"}),
        ({"reward": 2, "format": 1.0}, 2.0, {"format": 1.0}, {}),
        ({"math": 1.0}, 1.0, {}, {}),
        ({"math": 1.0, "style": 0.5}, None, {"math": 1.0, "style": 0.5}, {}),
    ],
)
def test_a_reward_may_be_a_number_or_an_object(
    reward: Any, score: float | None, rewards: dict[str, float], extras: dict[str, Any]
) -> None:
    (record,) = kept(slime_rollout, rollout(sample(reward=reward)))
    assert (record.score, record.rewards, record.extras) == (score, rewards, extras)


def test_the_rollout_id_of_a_sample_is_not_its_step() -> None:
    body = (SLIME / "rollout_data/1.pt").read_bytes()
    assert {one.extras["step"] for one in kept(slime_rollout, body, step=None)} == {1}
    assert all("step" not in one.extras for one in kept(slime_rollout, body, step=1))


def test_samples_of_one_execution_are_the_turns_of_one_trajectory() -> None:
    parts = [sample(rollout_id=4, index=4), sample(rollout_id=4, index=4), sample(rollout_id=5, index=5)]
    found = [(one.trajectory, one.turn) for one in kept(slime_rollout, rollout(*parts))]
    assert found == [("4", 0), ("4", 1), ("5", None)]


def test_the_data_sets_of_an_eval_do_not_share_groups_though_each_counts_from_zero() -> None:
    records = kept(slime_rollout, (SLIME / "rollout_data/eval_0.pt").read_bytes(), split="eval", filename="eval_0.pt")
    groups: dict[str | None, set[str]] = {}
    for record in records:
        groups.setdefault(record.group, set()).add(record.prompt)
    assert len(records) == 16 and len(groups) == 8
    assert all(len(prompts) == 1 for prompts in groups.values())
    assert {record.trajectory for record in records} == {None}


def test_parts_of_an_execution_with_prompts_of_their_own_stay_in_their_group() -> None:
    parts = [sample(prompt="a"), sample(prompt="a, summed up"), sample(group_index=1, prompt="b"), sample(prompt="a")]
    assert [one.group for one in kept(slime_rollout, rollout(*parts))] == ["0", "0", "1", "0"]


@pytest.mark.parametrize(
    ("status", "truncated"), [("completed", False), ("truncated", True), ("aborted", False), ("failed", False)]
)
def test_a_status_says_why_generation_ended(status: str, truncated: bool) -> None:
    (record,) = kept(slime_rollout, rollout(sample(status=status)))
    assert (record.finish_reason, record.truncated) == (status, truncated)


def test_an_empty_response_has_no_tokens_and_all_ids_are_the_prompts() -> None:
    (record,) = kept(slime_rollout, rollout(sample(response="", response_length=0, rollout_log_probs=[])))
    assert (record.prompt_ids, record.response_ids, record.logprobs) == ([5, 6, 7], [], [])


def test_arrays_of_another_length_than_the_response_are_not_read_against_its_tokens() -> None:
    (record,) = kept(slime_rollout, rollout(sample(loss_mask=[1, 0], rollout_log_probs=[-0.5, -0.5])))
    assert (record.response_ids, record.response_mask, record.logprobs) == ([7], None, None)


def test_every_other_key_is_kept_and_a_list_that_nobody_reads_is_counted() -> None:
    one = sample(custom="mine", remove_sample=True, rollout_routed_experts=[[1, 2]] * 900, session_id="s", spec_info={})
    (record,) = kept(slime_rollout, rollout(one))
    assert record.extras == {
        "custom": "mine", "remove_sample": True, "rollout_routed_experts": "<1,800 values>", "session_id": "s",
    }  # fmt: skip


def test_weights_that_changed_under_way_are_all_told() -> None:
    one, two = kept(slime_rollout, rollout(sample(weight_versions=["3", "4"]), sample(weight_versions=["default"])))
    assert (one.policy_version, one.extras) == (3, {"weight_versions": ["3", "4"]})
    assert (two.policy_version, two.extras) == (None, {"weight_versions": ["default"]})


def test_what_is_no_sample_is_told_and_the_others_are_kept() -> None:
    problems = [one for one in read(slime_rollout, rollout(sample(), 7, sample(prompt=3))) if isinstance(one, Problem)]
    assert [one.line for one in problems] == [2, 3]


@pytest.mark.parametrize("value", [[1], {"samples": []}, {"rollout_id": 1, "samples": "x"}, {"model": {}}])
def test_a_torch_file_that_is_no_rollout_is_refused(value: Any) -> None:
    with pytest.raises(UnreadableDump):
        read(slime_rollout, torch_file(value))


def test_what_a_few_bytes_unfold_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe.saved.MOST_VALUES", 1000)
    long = list(range(300))
    with pytest.raises(UnreadableDump, match="more than"):
        read(slime_rollout, rollout(*[sample(tokens=long, response_length=0)] * 5))


def test_a_train_dump_names_its_samples_as_their_rollout_does() -> None:
    path = SLIME / "rollout_data/0.pt"
    told = [(one.trajectory, one.turn) for one in kept(slime_rollout, path.read_bytes())]
    joined = [(one.trajectory, one.turn) for one in kept(slime_train, (SLIME / "train_data/0_0.pt").read_bytes())]
    assert joined == told
    parts = [{"rollout_ids": 4, "sample_index": 4, "rollout_position": at} for at in range(2)]
    found = kept(slime_train, trained(*parts, {"rollout_ids": 0, "sample_index": 9}))
    assert [(one.trajectory, one.turn) for one in found] == [("4", 0), ("4", 1), ("9", None)]


def test_a_train_dump_tells_advantages_the_raw_reward_and_the_normalised_one() -> None:
    one = {"sample_index": 0, "rollout_position": 0, "advantages": [0.5], "values": [2.0], "mine": "x"}
    (record,) = kept(slime_train, trained(one, raw_reward=[1.0]))
    assert (record.score, record.advantages, record.textless) == (1.0, [0.5], True)
    assert record.extras == {"normalized_reward": 0.5, "values_mean": 2.0, "mine": "x"}


def test_a_train_dump_of_another_version_is_refused() -> None:
    with pytest.raises(UnreadableDump, match="version 1"):
        read(slime_train, torch_file({"format_version": 1, "rollout_id": 0, "samples": [{}]}))


# ROLL


def test_one_line_of_columns_is_a_record_per_row() -> None:
    body = columns(
        id=["7", "7", "8"], domain=["math"] * 3, prompt=["q", "q", "r"], messages=['[{"role": "user"}]'] * 3,
        responses=["a", "b", ""], scores=[1.0, 0.0, 0.5], ground_truth=["4"] * 3, source=["gsm8k"] * 3,
        sampling_params=['{"top_p": 0.9}'] * 3, difficulty=["0.5"] * 3, case_type=[""] * 3, global_step=[1] * 3,
    )  # fmt: skip
    one, two, three = kept(roll_jsonl, body)
    assert [(x.group, x.index, x.response, x.score) for x in (one, two, three)] == [
        ("7", 0, "a", 1.0), ("7", 1, "b", 0.0), ("8", 0, "", 0.5),
    ]  # fmt: skip
    assert (one.ground_truth, one.data_source) == ("4", "gsm8k")
    assert one.extras == {"domain": "math", "sampling_params": {"top_p": 0.9}, "difficulty": "0.5"}


def test_prompts_of_two_domains_with_one_id_are_two_groups() -> None:
    body = columns(id=["1", "1"], domain=["math", "code"], prompt=["q", "r"], responses=["a", "b"], scores=[1, 0])
    assert [one.group for one in kept(roll_jsonl, body, step=None)] == ["1", "1.code"]


def test_columns_that_the_data_set_has_not_are_not_missed() -> None:
    (record,) = kept(roll_jsonl, columns(prompt=["q"], responses=["a"]), step=None)
    assert (record.group, record.score, record.extras) == (None, None, {})


def test_a_column_of_another_length_is_left_out_and_told() -> None:
    problem, record = read(roll_jsonl, columns(prompt=["q"], responses=["a"], scores=[1.0, 2.0], global_step=[1]))
    assert problem.kept and "`scores` has 2 values, not 1" in problem.reason
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
    body = columns(
        trajectory_data=[json.dumps(data)], messages=[json.dumps(turns)], tools=['[{"name": "move"}]'],
        exp_name=["run"], global_step=[1],
    )  # fmt: skip
    (record,) = kept(roll_jsonl, body)
    assert (record.prompt, record.response) == ("user\npush\nassistant\n", "up\nuser\nmoved\nassistant\nleft\n")
    assert (record.trajectory, record.group, record.score, record.data_source) == ("t1", "3", 1.0, "sokoban")
    assert (record.finish_reason, record.truncated, record.tools) == ("MAX_STEPS", True, [{"name": "move"}])
    assert record.extras == {"trajectory_data": data, "exp_name": "run", "mode": "val"}


def test_a_batch_to_load_again_tells_the_tokens_without_padding_and_log_probs_beside_their_tokens() -> None:
    records = kept(roll_mock, (ROLL / "mock/train/step_000001.pkl").read_bytes())
    assert len(records) == 32 and all(one.textless for one in records)
    assert all(len(one.response_ids or ()) == len(one.logprobs or ()) for one in records)
    assert {round(value, 4) for one in records for value in one.logprobs or () if value} == {-0.3}
    assert all(None not in (one.logprobs or ()) and 0 not in (one.logprobs or ()) for one in records)  # as padding has
    assert all((one.prompt_ids or [0])[0] == 1 for one in records)  # the first token of the template


def test_the_rows_of_a_batch_are_those_of_the_dump_of_its_step_in_order() -> None:
    told = kept(roll_jsonl, (ROLL / "rlvr_jsonl/rollout_dump_data.step_1.jsonl").read_bytes())
    batch = kept(roll_mock, (ROLL / "mock/train/step_000001.pkl").read_bytes())
    assert [(x.group, x.trajectory, x.prompt, x.score) for x in batch] == [
        (x.group, x.trajectory, x.prompt, x.score) for x in told
    ]


def test_bare_nan_and_strange_line_ends_stand_in_columns_too() -> None:
    body = b'{"prompt": ["a\xe2\x80\xa8b"], "responses": ["c\\u0000\xc2\x85"], "scores": [NaN], "global_step": [1]}\n'
    (record,) = kept(roll_jsonl, body)
    assert (record.prompt, record.response, record.score) == ("a\u2028b", "c\x00\x85", None)


def test_a_column_that_names_what_nobody_can_read_is_left_to_the_others() -> None:
    (record,) = kept(
        roll_jsonl, columns(prompt=["q"], responses=["a"], messages=["{broken"], tag=['["x"]'], global_step=[1])
    )
    assert (record.messages, record.extras) == (None, {"tag": ["x"]})
