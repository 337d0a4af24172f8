"""The step files of slime that can be pinned, and their facts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay.folder import PULL_MANIFEST
from rolloutdeck.safe_pickle.rewrite.mask import write_plain_archive
from rolloutdeck.trainer_api.registry import find_steps, read_step
from rolloutdeck.trainer_api.types import LoadableStep, StepLocation
from rolloutdeck.trainers import slime
from rolloutdeck.trainers.slime.facts import build_argument_facts as run_facts
from rolloutdeck.trainers.slime.layout import read_requirements
from rolloutdeck.trainers.slime.step_files import (
    PULLED_ROLLOUTS,
    UNNAMED_ROLLOUTS,
    UNREADABLE_ROLLOUTS,
    build_sample_facts,
)
from rolloutdeck.watch.scan import scan_folders
from rolloutdeck.watch.types import ScanOptions

DATA = Path(__file__).parents[3] / "data/slime"
SHAPE = {"rollout_batch_size": 8, "n_samples_per_prompt": 4}


def write_dump(path: Path, rollout: Any, *samples: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_plain_archive({"rollout_id": rollout, "samples": list(samples)}, file)
    return path


def read_location(path: Path) -> LoadableStep | str:
    (location,) = find_steps(path)
    return location.reason or read_step(location)


def test_rollouts_are_steps_and_evals_and_train_dumps_are_no_steps() -> None:
    matches = [read_step(location) for location in find_steps(DATA)]
    assert [(step.step, step.step_kind, step.files) for step in matches if isinstance(step, LoadableStep)] == [
        (rollout, "rollout_id", (f"{rollout}.pt",)) for rollout in (0, 1, 2)
    ]


def test_a_rollout_that_can_be_pinned_is_also_read_as_samples() -> None:
    result = scan_folders([DATA], ScanOptions())
    assert [step.step for step in result.steps] == [0, 1, 2]
    assert {file.source for file in result.files} == {
        "rollout_data/0.pt", "rollout_data/1.pt", "rollout_data/2.pt", "rollout_data/eval_0.pt", "train_data/0_0.pt",
    }  # fmt: skip


def test_a_file_whose_name_has_no_rollout_number_is_skipped_because_slime_overwrites_it(tmp_path: Path) -> None:
    for name in ("roll_0007.v2_7.pt", "000007.pt"):  # as `{rollout_id:06d}` gives it
        assert isinstance(read_location(write_dump(tmp_path / name, 7, {"reward": 1.0})), LoadableStep)
    assert read_location(write_dump(tmp_path / "v2.pt", 7, {"reward": 1.0})) == UNNAMED_ROLLOUTS


def test_an_unreadable_rollout_is_skipped_with_its_reason_and_a_checkpoint_is_no_step(tmp_path: Path) -> None:
    truncated = tmp_path / "3.pt"
    truncated.write_bytes((DATA / "rollout_data/1.pt").read_bytes()[:5000])
    assert read_location(truncated) == UNREADABLE_ROLLOUTS
    assert read_location(write_dump(tmp_path / "empty" / "4.pt", 4)) == UNREADABLE_ROLLOUTS
    assert read_location(write_dump(tmp_path / "word" / "5.pt", "5", {"reward": 1.0})) == UNREADABLE_ROLLOUTS
    (tmp_path / "6.pt").write_bytes(b"PK\x03\x04 a checkpoint")
    assert find_steps(tmp_path / "6.pt") == [] and find_steps(tmp_path / "7.pt") == []


def test_steps_that_pull_wrote_are_skipped(tmp_path: Path) -> None:
    shutil.copytree(DATA / "rollout_data", tmp_path / "into/rollout_data")
    (tmp_path / "into" / PULL_MANIFEST).write_text("{}")
    assert {location.reason for location in find_steps(tmp_path)} == {PULLED_ROLLOUTS}
    assert scan_folders([tmp_path], ScanOptions()).steps == []


@pytest.mark.parametrize(
    ("samples", "known"),
    [
        ([{"group_index": 0}, {"group_index": 0}, {"group_index": 1}, {"group_index": 1}], (4, 2, 2)),
        ([{"group_index": 0}, {"group_index": 1}, {"group_index": 1}], (3, 2, None)),
        ([{"group_index": 0, "rollout_id": 5}, {"group_index": 0, "rollout_id": 5}], (2, 1, 1)),
        ([{"group_index": None}, {}], (2, None, None)),
    ],
)
def test_prompts_and_answers_are_counted_only_if_the_samples_have_their_group(
    samples: list[dict[str, Any]], known: tuple[int | None, ...]
) -> None:
    facts = build_sample_facts(samples)
    assert tuple(facts.get(name) for name in ("rows", "prompts", "samples_per_prompt")) == known


def test_the_requirements_of_a_run_come_from_its_arguments() -> None:
    requirements = slime.TRAINER.read_requirements(
        {"--rollout-batch-size": 8, "n-samples-per-prompt": 4, "num_rollout": 9, "start_rollout_id": 4}
    )
    assert (requirements.first, requirements.total_steps, requirements.facts["rows"]) == (4, 5, 32)
    with pytest.raises(UsageError, match="have no n_samples_per_prompt; give them with --set NAME=NUMBER"):
        slime.TRAINER.read_requirements({"rollout_batch_size": 8})


def test_braces_in_a_folder_name_are_escaped_in_slimes_template() -> None:
    (words, *_) = slime.TRAINER.read_requirements(SHAPE).build_settings("/data/{me}", [0])
    assert shlex.split(words)[1].format(rollout_id=0) == "/data/{me}/rollout_data/0.pt"


def test_a_dump_of_another_trainer_is_no_rollout() -> None:
    requirements = slime.TRAINER.read_requirements(SHAPE)
    for role, files in (("rollout_tq", ["0.pt"]), ("rollout", ["gen_batch.dp"]), ("rollout", ["0.pt", "1.pt"])):
        with pytest.raises(NotReplayableError, match="not a rollout of slime"):
            requirements.select_files(role, files)


def test_find_steps_returns_the_step_of_a_single_file() -> None:
    path = DATA / "rollout_data/1.pt"
    assert find_steps(path) == [StepLocation("slime", path, "rollout", ("1.pt",), has_samples=True)]


@pytest.mark.parametrize("value", [[1], {"a": 1}, float("nan"), "x"])
def test_a_sample_whose_rollout_id_is_no_number_is_an_answer_of_its_own(value: Any) -> None:
    result = build_sample_facts([{"group_index": 0, "rollout_id": value}, {"group_index": 0, "rollout_id": value}])
    assert (result["prompts"], result["samples_per_prompt"]) == (1, 2)


def test_a_rollout_dump_and_a_train_dump_are_distinguished_by_their_keys() -> None:
    entries = b"PK\x03\x04 0/data.pkl X\x0a\x00\x00\x00rollout_id PK\x03\x04 0/.format_version"
    assert slime.is_slime_dump(entries, trained=False) and not slime.is_slime_dump(entries, trained=True)
    key = b"PK\x03\x04 0/data.pkl X\x0e\x00\x00\x00format_version X\x0a\x00\x00\x00rollout_id"
    assert slime.is_slime_dump(key, trained=True) and not slime.is_slime_dump(key, trained=False)


def test_the_facts_of_a_run_are_those_that_its_arguments_say() -> None:
    values = {**SHAPE, "rollout_max_response_len": True, "rollout_max_prompt_len": 64, "hf_checkpoint": None}
    assert run_facts(values) == {
        "role": "rollout", "serialisation": "torch", "format": "slime-rollout", "rows": 32, "prompts": 8,
        "samples_per_prompt": 4, "max_prompt_length": 64, "parameter_sync_step": 1,
    }  # fmt: skip


class CountedSteps(list[int]):
    """A list that counts how often it is read from the start."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        self.reads += 1
        return super().__iter__()


def test_the_arguments_for_many_rollouts_are_found_in_a_few_passes() -> None:
    steps = CountedSteps([*range(5, 1005), 2000])
    lines = read_requirements(SHAPE).build_settings("pins", steps)
    assert lines[-2:] == ["--start-rollout-id 5", "--num-rollout 1005"]
    assert steps.reads < 10
