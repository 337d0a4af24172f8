"""The steps of CURE that can be trained on again, and what a run asks for."""

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


def put(folder: Path, step: int = 0, *names: str) -> Path:
    """CURE's temp_data after a step, written in CURE's order."""
    folder = folder / "temp_data"
    folder.mkdir(exist_ok=True)
    for at, name in enumerate(names or ([BASE, LATER][step], CODE, CASE)):
        source = DATA / f"step{0 if name == CASE else step}/temp_data"  # its tests are the same in both steps
        shutil.copy(source / name, folder / name)
        age(folder / name, 1000.0 + 100 * step + at)
    return folder


def age(path: Path, at: float) -> None:
    os.utime(path, (at, at))


def spot_in(folder: Path) -> StepLocation:
    (spot,) = registry.find_steps(folder)
    return spot


def read_location(folder: Path) -> LoadableStep | str:
    spot = spot_in(folder)
    return spot.reason or registry.read_step(spot)


def requirements(**more: Any) -> CureRequirements:
    result = cure.TRAINER.read_requirements({**CONFIG, **more})
    assert isinstance(result, CureRequirements)
    return result


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_rewards_and_the_answers_that_they_are_of_are_a_step(tmp_path: Path) -> None:
    folder = put(tmp_path)
    facts = {"role": "rollout", "format": "cure", "serialisation": "json", "parameter_sync_step": 1}
    facts["model"] = "Qwen.Qwen2.5-7B-Instruct"
    assert requirements().facts == facts
    result = LoadableStep(folder, "rollout", 0, "iteration", (CODE, CASE, BASE), "temp_data", facts)
    assert read_location(tmp_path) == result
    assert spot_in(tmp_path).has_samples and spot_in(tmp_path).overwritten


def test_the_newest_outputs_are_the_steps(tmp_path: Path) -> None:
    put(tmp_path, 0)
    put(tmp_path, 1)
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and result.files == (CODE, CASE, LATER)


def test_a_step_of_a_checkpoint_has_no_model_that_could_be_compared(tmp_path: Path) -> None:
    folder = put(tmp_path, 1)
    name = "outputs-rl-.root.CURE.optimization.ckpt.optimized-CodeContests.json"
    (folder / LATER).rename(folder / name)
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and name in result.files and "model" not in result.facts


def test_a_data_set_with_a_dash_is_no_part_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "optimization_config.py").write_text('train_dataset = "Live-Code"\n')
    folder = put(tmp_path)
    (folder / BASE).rename(folder / BASE.replace("CodeContests", "Live-Code"))
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and result.facts["model"] == requirements().facts["model"]


def test_rewards_that_train_both_roles_together_are_one_file(tmp_path: Path) -> None:
    folder = put(tmp_path)
    (folder / BOTH).write_text(json.dumps(read(folder / CODE) + read(folder / CASE)))
    result = read_location(tmp_path)
    assert isinstance(result, LoadableStep) and result.files == (BOTH, BASE)


def test_programs_that_are_newer_than_the_rewards_are_of_the_next_step(tmp_path: Path) -> None:
    folder = put(tmp_path)
    age(folder / BASE, 2000.0)
    assert read_location(tmp_path) == "steps to replay, as these files of CURE belong to several steps"


def test_rewards_of_other_answers_are_not_paired_with_these_whatever_the_clock_says(tmp_path: Path) -> None:
    folder = put(tmp_path)
    rows = read(folder / CASE)
    rows[3]["response"] += " and more"
    (folder / CASE).write_text(json.dumps(rows))
    assert read_location(tmp_path) == "steps to replay, as these files of CURE belong to several steps"


@pytest.mark.parametrize(("file", "key"), [(CODE, "prompt"), (CODE, "response"), (BASE, "code_generation_prompt")])
def test_what_should_be_text_and_is_not_makes_no_step(tmp_path: Path, file: str, key: str) -> None:
    folder = put(tmp_path)
    rows, at = read(folder / file), (folder / file).stat().st_mtime
    rows[0][key] = [{"role": "user"}]
    (folder / file).write_text(json.dumps(rows))
    age(folder / file, at)
    assert not spot_in(tmp_path).reason
    assert read_location(tmp_path) == "steps to replay, as these files of CURE belong to several steps"


def test_programs_that_were_not_run_yet_are_no_step(tmp_path: Path) -> None:
    folder = put(tmp_path)
    shutil.copy(DATA / f"step0/before_execute/{BASE}", folder / BASE)
    assert read_location(tmp_path) == step_files.MIXED_CURE_STEPS  # newer than the rewards
    age(folder / BASE, 1000.0)  # whatever the clock says
    assert read_location(tmp_path) == step_files.UNEXECUTED_CURE_STEPS


@pytest.mark.parametrize("content", ["", "[{]", "[1]", '{"a": 1}', "[" * 100_000 + "]" * 100_000])
def test_a_file_that_is_half_written_or_no_array_is_no_step(tmp_path: Path, content: str) -> None:
    folder = put(tmp_path)
    (folder / CASE).write_text(content)
    assert isinstance(read_location(tmp_path), str)


def test_outputs_without_rewards_are_no_step(tmp_path: Path) -> None:
    put(tmp_path, 0, BASE, CODE)
    assert registry.find_steps(tmp_path) == []


def test_a_run_asks_for_files_named_for_its_model_and_data_set() -> None:
    result = requirements(pretrained_model="/models/My Coder", dataset="LeetCode")
    assert result.get_file_name(BASE, 3) == "outputs-rl-.models.My Coder-LeetCode.json"
    assert result.get_file_name(CODE, 3) == CODE
    assert result.select_files("rollout", [CODE, CASE, BASE]) == [BASE, CODE, CASE]
    assert (result.first, result.shared, str(result.get_step_folder(4))) == (0, False, "step_4")


def test_the_commands_train_on_each_step_with_the_model_that_the_one_before_saved() -> None:
    assert requirements(pretrained_model="My Model").build_settings("/in to", [0, 2]) == [
        "mkdir -p optimization/temp_data && install -m 644 '/in to/step_0'/*.json optimization/temp_data/",
        "(cd optimization && python -m train --pretrain 'My Model')",
        "mkdir -p optimization/temp_data && install -m 644 '/in to/step_2'/*.json optimization/temp_data/",
        "(cd optimization && python -m train --pretrain ckpt/optimized)",
    ]


def test_it_is_told_that_model_written_code_runs_without_a_sandbox() -> None:
    notes = " ".join(requirements().build_notes([0], moved=False))
    assert "It runs generated programs without a sandbox" in notes
    assert "reward.py --pretrained_model Qwen/Qwen2.5-7B-Instruct --dataset CodeContests" in notes


@pytest.mark.parametrize(("files", "separate"), [((CODE, CASE, BASE), False), ((BOTH, BASE), True)])
def test_rewards_of_the_other_way_to_train_are_refused(files: tuple[str, ...], separate: bool) -> None:
    with pytest.raises(NotReplayableError, match=f"this run has separate_training={separate}"):
        requirements(separate_training=separate).select_files("rollout", files)
    assert requirements().select_files("rollout", files)


@pytest.mark.parametrize("config", [{}, {"pretrained_model": "m"}, {"train_dataset": "D"}, {"max_steps": 3}])
def test_a_run_that_does_not_say_model_and_data_set_is_asked_for_them(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--set pretrained_model=MODEL dataset=NAME"):
        cure.TRAINER.read_requirements(config)


@pytest.mark.parametrize("name", ["pretrained_model", "train_dataset", "optimized_model_name"])
def test_a_name_that_only_the_running_code_knows_is_requested(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(f'import os\n{name} = os.environ["NAME"]\n')
    config = read_config_file(tmp_path / "config.py")[0]
    with pytest.raises(UsageError, match=f"--set {name}=VALUE"):
        requirements(**config)
    assert requirements(**{**config, name: "X"})


def test_a_data_set_that_is_a_path_is_refused() -> None:
    with pytest.raises(UsageError, match="not the name of a data set"):
        requirements(dataset="../../etc/x")


def test_flagged_rewards_are_deleted_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    source = DATA / f"step0/temp_data/{CODE}"
    message = write_without_answers(CODE, source, tmp_path / "made", [1, 5])
    rows = read(source)
    assert read(tmp_path / "made") == [row for at, row in enumerate(rows) if at not in (1, 5)]
    assert message.startswith("is replayed without 2 of its 16 rows, which are flagged; the rewards of the others were")


def test_without_a_flagged_row_the_file_is_written_byte_for_byte_as_cure_writes_it(tmp_path: Path) -> None:
    source = DATA / f"step0/temp_data/{BASE}"
    write_without_answers(BASE, source, tmp_path / "made", [])
    assert (tmp_path / "made").read_bytes() == source.read_bytes()


def test_a_flagged_program_goes_with_its_row_of_the_table_and_a_test_with_its_column(tmp_path: Path) -> None:
    source = DATA / f"step0/temp_data/{BASE}"
    before = read(source)
    message = write_without_answers(
        BASE, source, tmp_path / "made", [1, 6, 8]
    )  # the 2nd program, the 3rd test; of the 2nd task the first
    after = read(tmp_path / "made")
    assert "2 flagged programs and 1 flagged test" in message
    first, was, given = after[0], before[0], before[0]["num_ground_truth_test"]
    assert first["generated_code"] == [was["generated_code"][at] for at in (0, 2, 3)]
    assert first["case_input"] == [was["case_input"][at] for at in (0, 1, 3)]
    cells = [at for at in range(given + 4) if at != given + 2]
    assert first["all_case_input"] == [was["all_case_input"][at] for at in cells]
    for table in ("all_case_bool_table", "all_case_exe_results"):
        assert first[table] == [[was[table][row][at] for at in cells] for row in (0, 2, 3)]
    assert after[1]["full_code_generation"] == before[1]["full_code_generation"][1:]
    assert after[2:] == before[2:]


@pytest.mark.parametrize(("name", "flagged"), [(CODE, range(16)), (CODE, [16]), (BASE, [32])])
def test_nothing_is_written_where_nothing_would_be_left_or_a_row_is_not_there(
    tmp_path: Path, name: str, flagged: list[int]
) -> None:
    with pytest.raises(NotReplayableError, match="can't be written without its flagged answers"):
        write_without_answers(name, DATA / f"step0/temp_data/{name}", tmp_path / "made", flagged)
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
    tasks = read(DATA / f"step0/temp_data/{BASE}")
    tasks[0] |= change
    (tmp_path / BASE).write_text(json.dumps(tasks))
    if change == {"case_input": 3}:
        write_without_answers(BASE, tmp_path / BASE, tmp_path / "made", [6])
        assert read(tmp_path / "made")[0]["case_input"] == 3
        return
    with pytest.raises(NotReplayableError, match="can't be written without its flagged answers"):
        write_without_answers(BASE, tmp_path / BASE, tmp_path / "made", [6])
