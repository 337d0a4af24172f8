"""The rows that are built from slime's samples, with the samples of slime's own dumps."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.trainers.common.token_selection import TokenSelection
from rolloutdeck.trainers.slime.plugin import rows
from rollouts.formats import native
from rollouts.formats.base import DumpContext
from rollouts.formats.slime import rollout as slime_rollout
from rollouts.formats.slime.rollout import set_policy_version
from rollouts.samples.record import Record
from tests.rolloutdeck.support.fake_slime import DATA, Sample, read_samples


def read_records(reader: Any, stream: Any, name: str) -> list[Record]:
    return [
        item for item in reader.read(stream, DumpContext(filename=name, step=int(name[0]))) if isinstance(item, Record)
    ]


@pytest.mark.parametrize("name", ["0.pt", "1.pt", "2.pt"])
def test_the_server_reads_the_rows_as_it_reads_slimes_own_dump(name: str) -> None:
    samples = read_samples(name)
    created = rows.build_slime_rows(samples)
    rows.add_sample_tokens(created, samples, TokenSelection(None), "train", 0)
    result = read_records(native, io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in created)), name)
    with (DATA / name).open("rb") as file:
        dumped = read_records(slime_rollout, file, name)
    assert [item.extras.pop("response_length") for item in result] == [sample.response_length for sample in samples]
    for record in dumped:  # empty values are not recorded
        record.extras = {key: value for key, value in record.extras.items() if has_content(value)}
    assert result == dumped and len(result) == 32


def has_content(value: Any) -> bool:
    return any(value.values()) if isinstance(value, dict) else bool(value)


def test_the_images_of_a_prompt_have_the_name_that_the_server_gives_those_of_a_dump() -> None:
    image = object()
    row = rows.build_slime_row(vars(Sample(multimodal_inputs={"images": [image], "videos": None})))
    assert row["images"] == [image] and "multimodal_inputs" not in row
    assert "images" not in rows.build_slime_row(vars(Sample(multimodal_inputs={"images": None, "videos": None})))
    path = DATA.parents[1] / "slime_vision/rollout_data/0.pt"
    with path.open("rb") as file:
        assert [len(record.extras["images"]) for record in read_records(slime_rollout, file, path.name)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("reward", "key", "score", "parts"),
    [
        ({"acc": 1.0, "format": 0.5}, "acc", 1.0, {"format": 0.5}),
        ({"acc": 1.0, "format": 0.5}, "", None, {"acc": 1.0, "format": 0.5}),
        ({"score": 0.25, "why": "no"}, "", 0.25, None),
        ({"only": 2}, "gone", 2, None),
        (None, "", None, None),
        (0.0, "acc", 0.0, None),
    ],
)
def test_the_score_of_a_reward_dict_is_the_value_of_the_reward_key(
    reward: Any, key: str, score: Any, parts: Any
) -> None:
    row = rows.build_slime_row(vars(Sample(reward=reward)), key)
    assert (row.get("score"), row.get("rewards")) == (score, parts)
    assert row.get("why") == ("no" if isinstance(reward, dict) and "why" in reward else None)


def test_arrays_of_another_length_than_the_tokens_are_left_out() -> None:
    full = Sample(tokens=[1, 2, 3], response_length=2, loss_mask=[1], rollout_log_probs=[-0.5, -0.25])
    assert rows.extract_sample_tokens(full) == {"prompt_ids": [1], "response_ids": [2, 3], "logprobs": [-0.5, -0.25]}
    assert rows.extract_sample_tokens(Sample(tokens=[1], response_length=2)) == {}
    assert rows.extract_sample_tokens(Sample(tokens=[1], response_length=0)) == {"prompt_ids": [1], "response_ids": []}


def test_samples_are_found_however_deep_a_rollout_nests_them() -> None:
    """Groups of executions that were split into several samples."""
    first, second, third = read_samples("0.pt")[:3]
    assert (
        rows.flatten_samples([[first, [second]], [[[third]]]])
        == [first, second, third]
        == rows.flatten_samples((first, (second, third)))
    )
    assert rows.flatten_samples(first) == [first] and rows.flatten_samples([]) == []


def test_samples_of_one_execution_are_turns_of_one_trajectory_and_eval_samples_have_none() -> None:
    ids = [(None, 7), (101, 8), (5, 9), (101, 8), (101, 8)]
    created = [Sample(rollout_id=full, index=index, prompt="p") for full, index in ids]
    assert [(row.get("trajectory"), row.get("turn")) for row in rows.build_slime_rows(created)] == [
        ("7", None), ("101", 0), ("9", None), ("101", 1), ("101", 2),
    ]  # fmt: skip
    result = rows.build_slime_rows(created, source="aime")  # each data set counts its samples from 0
    assert [(row.get("trajectory"), row.get("turn")) for row in result] == [
        (None, None), ("101", 0), (None, None), ("101", 1), ("101", 2),
    ]  # fmt: skip


def test_numpy_numbers_become_plain_numbers_and_large_fields_are_not_recorded() -> None:
    numpy = pytest.importorskip("numpy")
    tokens = rows.extract_sample_tokens(
        Sample(tokens=numpy.array([1, 2]), response_length=1, loss_mask=numpy.array([1]))
    )
    assert tokens == {"prompt_ids": [1], "response_ids": [2], "response_mask": [1]}
    assert {type(item) for values in tokens.values() for item in values} == {int}
    row = rows.build_slime_row(
        vars(Sample(reward=numpy.float32(0.5), teacher_log_probs=[0.1], rollout_routed_experts=[[1]]))
    )
    assert row["score"] == 0.5 and not {"teacher_log_probs", "rollout_routed_experts"} & set(row)
    row = rows.build_slime_row(vars(Sample(reward={"score": numpy.array(1.0), "each": numpy.array([1.0, 2.0])})))
    assert row["score"] == 1.0 and "rewards" not in row
    row = rows.build_slime_row(vars(Sample(label=["4", "four"], weight_versions=["12", "13"], non_generation_time=0.5)))
    assert (row["ground_truth"], row["policy_version"], row["timing"]) == ("['4', 'four']", 12, {"non_generation": 0.5})


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["12"], (12, None)),
        (["12", "12"], (12, None)),
        (["12", "13"], (12, ["12", "13"])),  # partial rollout: the weights changed during the generation
        (["default"], (None, ["default"])),
        ([], (None, None)),
        (None, (None, None)),
    ],
)
def test_weight_versions_that_changed_or_are_names_are_recorded_as_in_slimes_own_files(
    versions: Any, expected: tuple[Any, Any]
) -> None:
    row = rows.build_slime_row(vars(Sample(weight_versions=versions)))
    assert (row.get("policy_version"), row.get("weight_versions")) == expected
    record = Record("", "")
    set_policy_version(record, versions)
    assert (record.policy_version, record.extras.get("weight_versions")) == expected


def test_slimes_info_objects_are_recorded_as_dicts_and_empty_ones_are_left_out() -> None:
    cache_info, empty_info = (
        SimpleNamespace(to_dict=lambda: {"cached_tokens": 16}),
        SimpleNamespace(to_dict=lambda: {"n": 0}),
    )
    row = rows.build_slime_row(vars(Sample(prefix_cache_info=cache_info, spec_info=empty_info)))
    assert row["prefix_cache_info"] == {"cached_tokens": 16} and "spec_info" not in row
