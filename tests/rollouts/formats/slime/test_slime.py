"""Special cases of slime's dumps. Real dumps are tested in test_trainers.py and test_independent.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import select_format
from rollouts.formats.slime import rollout as slime_rollout
from rollouts.formats.slime import train as slime_train
from rollouts.samples import extract_images, list_images
from rollouts.samples.record import LineProblem, Record
from tests.rollouts.support.trainer_dumps import (
    DATA,
    SLIME,
    encode_rollout,
    encode_torch_file,
    encode_train_dump,
    read_items,
    read_records,
    sample,
)

MILES = DATA / "miles"


def test_prompts_are_texts_in_one_rollout_and_messages_in_another() -> None:
    text, chat = (read_records(slime_rollout, (SLIME / f"rollout_data/{step}.pt").read_bytes())[0] for step in (0, 2))
    assert text.messages is None and text.prompt.startswith("<|im_start|>system")
    assert chat.messages and chat.prompt.startswith("system\n")


def test_the_images_of_a_prompt_are_shown_and_the_tensors_made_of_them_are_not_stored(
    data_dir: Path, db: None
) -> None:  # a bucket is checked with the database
    first, *_, last = read_records(slime_rollout, (DATA / "slime_vision/rollout_data/0.pt").read_bytes())
    images = list_images(extract_images(last, "run"))
    assert [(image.origin, image.kind, image.width, image.height) for image in images] == [("images", "png", 12, 8)] * 2
    assert len(list_images(extract_images(first, "run"))) == 1
    assert not {"multimodal_inputs", "multimodal_train_inputs", "videos"} & set(last.extras)


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
    (record,) = read_records(slime_rollout, encode_rollout(sample(reward=reward)))
    assert (record.score, record.rewards, record.extras) == (score, rewards, extras)


def test_the_rollout_id_of_a_sample_is_not_its_step() -> None:
    body = (SLIME / "rollout_data/1.pt").read_bytes()
    assert {item.extras["step"] for item in read_records(slime_rollout, body, step=None)} == {1}
    assert all("step" not in item.extras for item in read_records(slime_rollout, body, step=1))


def test_samples_of_one_execution_are_the_turns_of_one_trajectory() -> None:
    parts = [sample(rollout_id=4, index=4), sample(rollout_id=4, index=4), sample(rollout_id=5, index=5)]
    matches = [(item.trajectory, item.turn) for item in read_records(slime_rollout, encode_rollout(*parts))]
    assert matches == [("4", 0), ("4", 1), ("5", None)]


def test_the_data_sets_of_an_eval_do_not_share_groups_though_each_counts_from_zero() -> None:
    records = read_records(
        slime_rollout, (SLIME / "rollout_data/eval_0.pt").read_bytes(), split="eval", filename="eval_0.pt"
    )
    groups: dict[str | None, set[str]] = {}
    for record in records:
        groups.setdefault(record.group, set()).add(record.prompt)
    assert len(records) == 16 and len(groups) == 8
    assert all(len(prompts) == 1 for prompts in groups.values())
    assert {record.trajectory for record in records} == {None}


@pytest.mark.parametrize("options", [{"split": "eval"}, {"filename": "eval_3.pt"}])
def test_data_sets_of_an_eval_that_follow_each_other_with_the_same_number_are_two_groups(options: Any) -> None:
    prompts = ("a", "a", "b", "b", "c")
    records = read_records(slime_rollout, encode_rollout(*(sample(prompt=prompt) for prompt in prompts)), **options)
    assert [(item.group, item.index) for item in records] == [("0", 0), ("0", 1), ("0.1", 0), ("0.1", 1), ("0.2", 0)]


def test_parts_of_an_execution_with_prompts_of_their_own_stay_in_their_group() -> None:
    parts = [sample(prompt="a"), sample(prompt="a, summed up"), sample(group_index=1, prompt="b"), sample(prompt="a")]
    assert [item.group for item in read_records(slime_rollout, encode_rollout(*parts))] == ["0", "0", "1", "0"]


@pytest.mark.parametrize(
    ("status", "truncated"), [("completed", False), ("truncated", True), ("aborted", False), ("failed", False)]
)
def test_a_status_says_why_generation_ended(status: str, truncated: bool) -> None:
    (record,) = read_records(slime_rollout, encode_rollout(sample(status=status)))
    assert (record.finish_reason, record.truncated) == (status, truncated)


def test_an_empty_response_has_no_tokens_and_all_ids_are_the_prompts() -> None:
    (record,) = read_records(
        slime_rollout, encode_rollout(sample(response="", response_length=0, rollout_log_probs=[]))
    )
    assert (record.prompt_ids, record.response_ids, record.logprobs) == ([5, 6, 7], [], [])


def test_arrays_of_another_length_than_the_response_are_ignored() -> None:
    (record,) = read_records(slime_rollout, encode_rollout(sample(loss_mask=[1, 0], rollout_log_probs=[-0.5, -0.5])))
    assert (record.response_ids, record.response_mask, record.logprobs) == ([7], None, None)


def test_other_keys_are_kept_and_a_long_list_is_replaced_by_its_size() -> None:
    first = sample(
        custom="mine", remove_sample=True, rollout_routed_experts=[[1, 2]] * 900, session_id="s", spec_info={}
    )
    (record,) = read_records(slime_rollout, encode_rollout(first))
    assert record.extras == {
        "custom": "mine", "remove_sample": True, "rollout_routed_experts": "<1,800 values>", "session_id": "s",
    }  # fmt: skip


def test_all_weight_versions_of_a_sample_are_stored() -> None:
    first, second = read_records(
        slime_rollout, encode_rollout(sample(weight_versions=["3", "4"]), sample(weight_versions=["default"]))
    )
    assert (first.policy_version, first.extras) == (3, {"weight_versions": ["3", "4"]})
    assert (second.policy_version, second.extras) == (None, {"weight_versions": ["default"]})


def test_an_invalid_sample_is_reported_and_the_others_are_kept() -> None:
    problems = [
        item
        for item in read_items(slime_rollout, encode_rollout(sample(), 7, sample(prompt=3)))
        if isinstance(item, LineProblem)
    ]
    assert [problem.line for problem in problems] == [2, 3]


@pytest.mark.parametrize("value", [[1], {"samples": []}, {"rollout_id": 1, "samples": "x"}, {"model": {}}])
def test_a_torch_file_that_is_no_rollout_is_refused(value: Any) -> None:
    with pytest.raises(UnreadableDumpError):
        read_items(slime_rollout, encode_torch_file(value))


def test_the_number_of_values_that_a_small_file_expands_to_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.torch_dict.MAX_ROW_VALUES", 1000)
    long = list(range(300))
    with pytest.raises(UnreadableDumpError, match="more than"):
        read_items(slime_rollout, encode_rollout(*[sample(tokens=long, response_length=0)] * 5))


@pytest.mark.parametrize("form", [slime_rollout, slime_train], ids=["rollout", "train dump"])
def test_a_sample_with_too_many_values_is_reported_and_the_others_are_read(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.plain_values.MAX_PLAIN_VALUES", 1000)
    large = {"mine": list(range(1001))}
    file = encode_rollout(sample(**large), sample()) if form is slime_rollout else encode_train_dump(large, {})
    problem, record = read_items(form, file)
    assert isinstance(problem, LineProblem) and problem.line == 1 and "values" in problem.reason
    assert isinstance(record, Record)


def test_a_sample_may_have_bytes_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.plain_values.MAX_PLAIN_VALUES", 1000)
    video = {"videos": [bytes(100_000)]}
    first, second = read_records(slime_rollout, encode_rollout(*[sample(multimodal_inputs=video)] * 2))
    assert first.extras == second.extras == {"videos": ["<100,000 bytes>"]}
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.torch_dict.MAX_ROW_VALUES", 2000)
    with pytest.raises(UnreadableDumpError, match="values"):
        read_items(slime_rollout, encode_rollout(*[sample(multimodal_inputs=video)] * 2))


def test_a_train_dump_names_its_samples_as_their_rollout_does() -> None:
    path = SLIME / "rollout_data/0.pt"
    expected = [(item.trajectory, item.turn) for item in read_records(slime_rollout, path.read_bytes())]
    names = [
        (item.trajectory, item.turn) for item in read_records(slime_train, (SLIME / "train_data/0_0.pt").read_bytes())
    ]
    assert names == expected
    parts = [{"rollout_ids": 4, "sample_index": 4, "rollout_position": at} for at in range(2)]
    result = read_records(slime_train, encode_train_dump(*parts, {"rollout_ids": 0, "sample_index": 9}))
    assert [(item.trajectory, item.turn) for item in result] == [("4", 0), ("4", 1), ("9", None)]


def test_a_train_dump_has_advantages_the_raw_reward_and_the_normalised_reward() -> None:
    values = {"sample_index": 0, "rollout_position": 0, "advantages": [0.5], "values": [2.0], "mine": "x"}
    (record,) = read_records(slime_train, encode_train_dump(values, raw_reward=[1.0]))
    assert (record.score, record.advantages, record.textless) == (1.0, [0.5], True)
    assert record.extras == {"normalized_reward": 0.5, "values_mean": 2.0, "mine": "x"}


def test_a_train_dump_of_another_version_is_refused() -> None:
    with pytest.raises(UnreadableDumpError, match="version 1"):
        read_items(slime_train, encode_torch_file({"format_version": 1, "rollout_id": 0, "samples": [{}]}))


def test_a_dump_with_a_list_per_key_has_the_samples_of_its_rank() -> None:
    """As miles writes them."""
    records = {
        item.trajectory: item for item in read_records(slime_rollout, (MILES / "rollout_data/0.pt").read_bytes())
    }
    train_records = [
        item for rank in (0, 1) for item in read_records(slime_train, (MILES / f"train_data/0_{rank}.pt").read_bytes())
    ]
    assert sorted(item.trajectory for item in train_records) == sorted(records) == ["0", "1", "2", "3"]
    for item in train_records:
        sample = records[item.trajectory]
        assert (item.prompt_ids, item.response_ids) == (sample.prompt_ids, sample.response_ids)
        assert item.logprobs == pytest.approx(sample.logprobs)
        normalized = 0.7071057 if sample.score else -0.7071057
        assert item.advantages == pytest.approx([normalized] * len(item.response_ids))
        assert item.ref_logprobs == pytest.approx([-0.7] * len(item.response_ids))
        assert (item.score, item.extras["normalized_reward"]) == (None, pytest.approx(normalized))
    assert [item.response_mask for item in train_records if item.trajectory == "1"] == [[1, 0, 1]]


def test_values_that_are_split_over_ranks_are_reported_and_left_out() -> None:
    columns = {"tokens": [[5, 6, 7]], "response_lengths": [2], "advantages": [[0.5]], "sample_indices": [0]}
    body = encode_torch_file({"rollout_id": 1, "rank": 0, "rollout_data": columns, "cp_rank": 0, "cp_size": 2})
    skipped, record = read_items(slime_train, body)
    assert "context-parallel" in skipped.reason
    assert (record.response_ids, record.advantages, record.trajectory) == ([6, 7], None, "0")


@pytest.mark.parametrize("columns", [{}, {"tokens": 5}, {"tokens": []}])
def test_a_dump_of_training_data_without_samples_is_refused(columns: Any) -> None:
    with pytest.raises(UnreadableDumpError, match="train dump"):
        read_items(slime_train, encode_torch_file({"rollout_id": 1, "rank": 0, "rollout_data": columns}))


def test_rollout_dumps_and_train_dumps_of_miles_are_recognised() -> None:
    for path in MILES.rglob("*.pt"):
        is_trained = path.parent.name == "train_data"
        assert select_format(path.name, path.read_bytes()[:65536]) is (slime_train if is_trained else slime_rollout)


@pytest.mark.timeout(60)
def test_a_deeply_nested_list_as_step_or_version_is_not_expanded() -> None:
    nested: list[Any] = [1]
    for _ in range(18):
        nested = [nested] * 10
    (record,) = read_records(slime_rollout, encode_rollout(sample(), step=nested))  # type: ignore[arg-type]
    assert record.extras["step"] is None
    row = {"rollout_position": 0}
    (record,) = read_records(
        slime_train, encode_train_dump(row, rollout_id=nested, cp_size=nested, raw_reward=[nested])
    )
    assert record.score is None
    with pytest.raises(UnreadableDumpError, match="version"):
        read_items(slime_train, encode_torch_file({"format_version": nested, "rollout_id": 0, "samples": [{}]}))
