"""The step files of CURE that can be replayed, and what a run requires of them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.trainer_api import registry
from rolloutdeck.trainer_api.types import LoadableStep, StepLocation
from rolloutdeck.trainer_config import read_config_file
from rolloutdeck.trainers import cure
from rolloutdeck.trainers.cure import step_files
from rolloutdeck.trainers.cure.exclude import write_without_answers
from rolloutdeck.trainers.cure.layout import CureRequirements

DATA = Path(__file__).parents[3] / "data/cure"
BASE = "outputs-rl-Qwen.Qwen2.5-7B-Instruct-CodeContests.json"
LATER = "outputs-rl-ckpt.optimized-CodeContests.json"
CODE, CASE, BOTH = "rl_code_data.json", "rl_case_data.json", "rl_data.json"
CONFIG = {"pretrained_model": "Qwen/Qwen2.5-7B-Instruct", "train_dataset": "CodeContests"}


def write_step_files(folder: Path, step: int = 0, *names: str) -> Path:
    """Writes the files of `temp_data` as they are after a step of CURE, in CURE's order."""
    folder = folder / "temp_data"
    folder.mkdir(exist_ok=True)
    for position, name in enumerate(names or ([BASE, LATER][step], CODE, CASE)):
        source = DATA / f"step{0 if name == CASE else step}/temp_data"  # the tests are the same in both steps
        shutil.copy(source / name, folder / name)
        set_modified_time(folder / name, 1000.0 + 100 * step + position)
    return folder


def set_modified_time(path: Path, modified_at: float) -> None:
    os.utime(path, (modified_at, modified_at))


def find_only_step(folder: Path) -> StepLocation:
    (location,) = registry.find_steps(folder)
    return location


def read_location(folder: Path) -> LoadableStep | str:
    location = find_only_step(folder)
    return location.reason or registry.read_step(location)


def read_requirements(**more: Any) -> CureRequirements:
    result = cure.TRAINER.read_requirements({**CONFIG, **more})
    assert isinstance(result, CureRequirements)
    return result


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_rewards_and_their_answers_are_a_step(tmp_path: Path) -> None:
    folder = write_step_files(tmp_path)
    facts = {"role": "rollout", "format": "cure", "serialisation": "json", "parameter_sync_step": 1}
    facts["model"] = "Qwen.Qwen2.5-7B-Instruct"
    assert read_requirements().facts == facts
    result = LoadableStep(folder, "rollout", 0, "iteration", (CODE, CASE, BASE), "temp_data", facts)
    assert read_location(tmp_path) == result
    assert find_only_step(tmp_path).has_samples and find_only_step(tmp_path).overwritten


def test_the_newest_outputs_belong_to_the_step(tmp_path: Path) -> None:
    write_step_files(tmp_path, 0)
    write_step_files(tmp_path, 1)
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and result.files == (CODE, CASE, LATER)


def test_a_step_of_a_checkpoint_has_no_model_in_its_facts(tmp_path: Path) -> None:
    folder = write_step_files(tmp_path, 1)
    name = "outputs-rl-.root.CURE.optimization.ckpt.optimized-CodeContests.json"
    (folder / LATER).rename(folder / name)
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and name in result.files and "model" not in result.facts


def test_a_data_set_name_with_a_dash_is_not_part_of_the_model_name(tmp_path: Path) -> None:
    (tmp_path / "optimization_config.py").write_text('train_dataset = "Live-Code"\n')
    folder = write_step_files(tmp_path)
    (folder / BASE).rename(folder / BASE.replace("CodeContests", "Live-Code"))
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and result.facts["model"] == read_requirements().facts["model"]


def test_rewards_that_train_both_roles_together_are_one_file(tmp_path: Path) -> None:
    folder = write_step_files(tmp_path)
    (folder / BOTH).write_text(json.dumps(read_json(folder / CODE) + read_json(folder / CASE)))
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and result.files == (BOTH, BASE)


def test_programs_that_are_newer_than_the_rewards_belong_to_the_next_step(tmp_path: Path) -> None:
    folder = write_step_files(tmp_path)
    set_modified_time(folder / BASE, 2000.0)
    assert read_location(tmp_path) == "steps to replay, as these files of CURE belong to several steps"


def test_rewards_of_other_answers_are_no_step_even_if_the_file_times_fit(tmp_path: Path) -> None:
    folder = write_step_files(tmp_path)
    rows = read_json(folder / CASE)
    rows[3]["response"] += " and more"
    (folder / CASE).write_text(json.dumps(rows))
    assert read_location(tmp_path) == "steps to replay, as these files of CURE belong to several steps"


@pytest.mark.parametrize(("file", "key"), [(CODE, "prompt"), (CODE, "response"), (BASE, "code_generation_prompt")])
def test_a_field_that_is_not_text_makes_no_step(tmp_path: Path, file: str, key: str) -> None:
    folder = write_step_files(tmp_path)
    rows, modified_at = read_json(folder / file), (folder / file).stat().st_mtime
    rows[0][key] = [{"role": "user"}]
    (folder / file).write_text(json.dumps(rows))
    set_modified_time(folder / file, modified_at)
    assert not find_only_step(tmp_path).reason
    assert read_location(tmp_path) == "steps to replay, as these files of CURE belong to several steps"


def test_programs_that_were_not_executed_yet_are_no_step(tmp_path: Path) -> None:
    folder = write_step_files(tmp_path)
    shutil.copy(DATA / f"step0/before_execute/{BASE}", folder / BASE)
    assert read_location(tmp_path) == step_files.MIXED_CURE_STEPS  # newer than the rewards
    set_modified_time(folder / BASE, 1000.0)  # also with a time before the rewards
    assert read_location(tmp_path) == step_files.UNEXECUTED_CURE_STEPS


@pytest.mark.parametrize("content", ["", "[{]", "[1]", '{"a": 1}', "[" * 100_000 + "]" * 100_000])
def test_a_file_that_is_incomplete_or_no_array_is_no_step(tmp_path: Path, content: str) -> None:
    folder = write_step_files(tmp_path)
    (folder / CASE).write_text(content)
    assert isinstance(read_location(tmp_path), str)


def test_outputs_without_rewards_are_no_step(tmp_path: Path) -> None:
    write_step_files(tmp_path, 0, BASE, CODE)
    assert registry.find_steps(tmp_path) == []


def test_a_run_asks_for_files_named_for_its_model_and_data_set() -> None:
    result = read_requirements(pretrained_model="/models/My Coder", dataset="LeetCode")
    assert result.get_file_name(BASE, 3) == "outputs-rl-.models.My Coder-LeetCode.json"
    assert result.get_file_name(CODE, 3) == CODE
    assert result.select_files("rollout", [CODE, CASE, BASE]) == [BASE, CODE, CASE]
    assert (result.first, result.shared, str(result.get_step_folder(4))) == (0, False, "step_4")


def test_the_commands_train_on_each_step_with_the_model_that_the_one_before_saved() -> None:
    assert read_requirements(pretrained_model="My Model").build_settings("/in to", [0, 2]) == [
        "mkdir -p optimization/temp_data && install -m 644 '/in to/step_0'/*.json optimization/temp_data/",
        "(cd optimization && python -m train --pretrain 'My Model')",
        "mkdir -p optimization/temp_data && install -m 644 '/in to/step_2'/*.json optimization/temp_data/",
        "(cd optimization && python -m train --pretrain ckpt/optimized)",
    ]


def test_the_notes_say_that_generated_programs_run_without_a_sandbox() -> None:
    notes = " ".join(read_requirements().build_notes([0], moved=False))
    assert "It runs generated programs without a sandbox" in notes
    assert "reward.py --pretrained_model Qwen/Qwen2.5-7B-Instruct --dataset CodeContests" in notes


@pytest.mark.parametrize(("files", "separate"), [((CODE, CASE, BASE), False), ((BOTH, BASE), True)])
def test_rewards_of_the_other_value_of_separate_training_are_refused(files: tuple[str, ...], separate: bool) -> None:
    with pytest.raises(NotReplayableError, match=f"this run has separate_training={separate}"):
        read_requirements(separate_training=separate).select_files("rollout", files)
    assert read_requirements().select_files("rollout", files)


@pytest.mark.parametrize("config", [{}, {"pretrained_model": "m"}, {"train_dataset": "D"}, {"max_steps": 3}])
def test_a_config_without_model_and_data_set_is_an_error_that_asks_for_them(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--set pretrained_model=MODEL dataset=NAME"):
        cure.TRAINER.read_requirements(config)


@pytest.mark.parametrize("name", ["pretrained_model", "train_dataset", "optimized_model_name"])
def test_a_setting_that_the_config_file_computes_is_requested(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(f'import os\n{name} = os.environ["NAME"]\n')
    config = read_config_file(tmp_path / "config.py")[0]
    with pytest.raises(UsageError, match=f"--set {name}=VALUE"):
        read_requirements(**config)
    assert read_requirements(**{**config, name: "X"})


def test_a_data_set_that_is_a_path_is_refused() -> None:
    with pytest.raises(UsageError, match="not the name of a data set"):
        read_requirements(dataset="../../etc/x")


def test_flagged_rewards_are_deleted_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    source = DATA / f"step0/temp_data/{CODE}"
    message = write_without_answers(CODE, source, tmp_path / "made", [1, 5], "flagged")
    rows = read_json(source)
    assert read_json(tmp_path / "made") == [row for index, row in enumerate(rows) if index not in (1, 5)]
    assert message.startswith("is replayed without 2 of its 16 rows, which are flagged; the rewards of the others were")


def test_without_a_flagged_row_the_file_is_written_byte_for_byte_as_cure_writes_it(tmp_path: Path) -> None:
    source = DATA / f"step0/temp_data/{BASE}"
    write_without_answers(BASE, source, tmp_path / "made", [], "flagged")
    assert (tmp_path / "made").read_bytes() == source.read_bytes()


def test_a_flagged_program_is_deleted_with_its_table_row_and_a_test_with_its_column(tmp_path: Path) -> None:
    source = DATA / f"step0/temp_data/{BASE}"
    before = read_json(source)
    # the 2nd program and the 3rd test of the 1st task, the 1st program of the 2nd task
    message = write_without_answers(BASE, source, tmp_path / "made", [1, 6, 8], "flagged")
    after = read_json(tmp_path / "made")
    assert "2 flagged programs and 1 flagged test" in message
    first, original, given_tests = after[0], before[0], before[0]["num_ground_truth_test"]
    assert first["generated_code"] == [original["generated_code"][index] for index in (0, 2, 3)]
    assert first["case_input"] == [original["case_input"][index] for index in (0, 1, 3)]
    cells = [index for index in range(given_tests + 4) if index != given_tests + 2]
    assert first["all_case_input"] == [original["all_case_input"][index] for index in cells]
    for table in ("all_case_bool_table", "all_case_exe_results"):
        assert first[table] == [[original[table][row][index] for index in cells] for row in (0, 2, 3)]
    assert after[1]["full_code_generation"] == before[1]["full_code_generation"][1:]
    assert after[2:] == before[2:]


@pytest.mark.parametrize(("name", "flagged"), [(CODE, range(16)), (CODE, [16]), (BASE, [32])])
def test_nothing_is_written_if_no_row_would_be_left_or_a_flagged_row_does_not_exist(
    tmp_path: Path, name: str, flagged: list[int]
) -> None:
    with pytest.raises(NotReplayableError, match="can't be written without its flagged answers"):
        write_without_answers(name, DATA / f"step0/temp_data/{name}", tmp_path / "made", flagged, "flagged")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"full_case_generation": None},
        {"full_case_generation": "abc"},
        {"num_ground_truth_test": "2"},
        {"case_input": 3},
    ],
)
def test_a_task_that_is_not_as_cure_writes_it_is_refused_or_written_without_a_crash(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    tasks = read_json(DATA / f"step0/temp_data/{BASE}")
    tasks[0] |= change
    (tmp_path / BASE).write_text(json.dumps(tasks))
    if change == {"case_input": 3}:
        write_without_answers(BASE, tmp_path / BASE, tmp_path / "made", [6], "flagged")
        assert read_json(tmp_path / "made")[0]["case_input"] == 3
        return
    with pytest.raises(NotReplayableError, match="can't be written without its flagged answers"):
        write_without_answers(BASE, tmp_path / BASE, tmp_path / "made", [6], "flagged")
