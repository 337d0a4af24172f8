"""The step files of ROLL that can be replayed, and what a run requires of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.trainer_api import registry
from rolloutdeck.trainer_api.types import LoadableStep
from rolloutdeck.trainers import roll
from rolloutdeck.trainers.roll.layout import RollRequirements

STEP = Path(__file__).parents[3] / "data/roll/mock/train/step_000001.pkl"
CONFIG = {
    "max_steps": 3,
    "rollout_batch_size": 8,
    "num_return_sequences_in_group": 4,
    "prompt_length": 128,
    "response_length": 256,
    "pretrain": "Qwen/Qwen3-8B",
}
FACTS = {
    "role": "rollout",
    "format": "roll-mock",
    "serialisation": "torch",
    "parameter_sync_step": 1,
    "rows": 32,
    "prompts": 8,
    "samples_per_prompt": 4,
    "max_prompt_length": 128,
    "max_response_length": 256,
}


def write_batch(folder: Path, name: str = "train/step_000007.pkl", cut: int = 0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(STEP.read_bytes()[: -cut or None])
    return path


def read_requirements(**more: Any) -> RollRequirements:
    result = roll.TRAINER.read_requirements({**CONFIG, **more})
    assert isinstance(result, RollRequirements)
    return result


def test_a_training_batch_is_a_step_with_its_facts(tmp_path: Path) -> None:
    path = write_batch(tmp_path)
    (location,) = registry.find_steps(tmp_path)
    assert registry.read_step(location) == LoadableStep(
        path.parent, "rollout", 7, "global_step", (path.name,), "mock", FACTS
    )
    assert registry.find_steps(path) == [location]
    assert location.has_samples


def test_a_batch_that_is_incomplete_or_damaged_is_skipped_with_its_reason(tmp_path: Path) -> None:
    write_batch(tmp_path, cut=1)
    (location,) = registry.find_steps(tmp_path)
    assert location.reason == "steps to replay, as ROLL's batch is truncated"
    data = bytearray(STEP.read_bytes())
    data[300:320] = b"x" * 20
    write_batch(tmp_path).write_bytes(bytes(data))
    (location,) = registry.find_steps(tmp_path)
    assert str(registry.read_step(location)).startswith("steps to replay, as ROLL's batch can't be read: ")


@pytest.mark.parametrize("name", ["val/step_000001.pkl", "train/batch_000001.pkl", "train/.old/step_000001.pkl"])
def test_validation_and_other_pickles_are_no_steps(tmp_path: Path, name: str) -> None:
    write_batch(tmp_path, name)
    assert registry.find_steps(tmp_path) == []


def test_another_programs_pickle_of_this_name_is_no_step(tmp_path: Path) -> None:
    write_batch(tmp_path).write_bytes(b"\x80\x04N.")
    assert registry.find_steps(tmp_path) == []


def test_steps_that_pull_wrote_are_skipped(tmp_path: Path) -> None:
    write_batch(tmp_path)
    (tmp_path / ".rolloutdeck-pull.json").write_text("{}")
    (location,) = registry.find_steps(tmp_path)
    assert location.reason == "steps to replay that `rolloutdeck pull` wrote"


def test_a_run_asks_for_batches_of_the_shape_of_its_settings() -> None:
    assert read_requirements().facts == {**FACTS, "model": "Qwen/Qwen3-8B"}
    full = read_requirements(response_length=None, sequence_length=384)
    assert full.facts == {**FACTS, "model": "Qwen/Qwen3-8B"}


def test_an_agent_run_has_only_the_facts_of_the_format() -> None:
    result = read_requirements(**{"train_env_manager.group_size": 4})
    assert set(result.facts) == {"role", "format", "serialisation", "parameter_sync_step"}
    assert "eval_steps: 0" in result.build_settings("/into", [0])


def test_the_steps_from_0_on_are_files_of_one_folder() -> None:
    result = read_requirements()
    assert (result.first, result.shared, result.total_steps) == (0, True, 3)
    assert result.get_step_folder(12) / result.get_file_name("step_000040.pkl", 12) == Path("train/step_000012.pkl")


def test_the_yaml_lines_load_the_steps_before_the_first_gap() -> None:
    assert read_requirements().build_settings("/data/my runs", [0, 1, 4]) == [
        "rollout_mock:",
        "  enable: true",
        "  mode: mock",
        '  dump_dir: "/data/my runs"',
        "max_steps: 2",
        "validation: null",
    ]


def test_the_notes_report_a_gap_because_roll_ends_there() -> None:
    (gap,) = [text for text in read_requirements().build_notes([0, 1, 4], moved=True) if "max_steps" in text]
    assert "max_steps is 2, as step 2 has none, and later steps are not reached" in gap
    assert not any("max_steps" in text for text in read_requirements().build_notes([0, 1, 2], moved=True))
    assert any(
        "max_steps is 0, as step 0 has none" in text for text in read_requirements().build_notes([5], moved=True)
    )


def test_a_step_of_several_files_is_refused() -> None:
    with pytest.raises(NotReplayableError, match="not a batch that ROLL's rollout_mock wrote"):
        read_requirements().select_files("rollout", ["gen_batch.dp", "meta.json"])
    assert read_requirements().select_files("rollout", ["step_000001.pkl"]) == ["step_000001.pkl"]


def test_a_run_of_several_domains_is_refused_as_each_would_load_the_same_file() -> None:
    domains = {f"actor_train.data_args.domain_interleave_probs.{name}": 0.5 for name in ("math_rule", "code")}
    with pytest.raises(UsageError, match=r"2 domains \(code, math_rule\).*the batch of the last domain"):
        read_requirements(**domains)


@pytest.mark.parametrize("config", [{}, {"trainer.total_training_steps": 5}, {"max_steps": 5, "beta": 0.0}])
def test_settings_of_another_trainer_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not settings of ROLL"):
        roll.TRAINER.read_requirements(config)


def test_a_setting_that_is_not_a_number_is_an_error_that_names_it() -> None:
    with pytest.raises(UsageError, match="rollout_batch_size=many is not a whole number"):
        read_requirements(rollout_batch_size="many")


@pytest.mark.parametrize("facts", [FACTS, {name: fact for name, fact in FACTS.items() if name in ("role", "rows")}])
def test_a_run_with_unknown_settings_asks_for_the_pinned_facts(facts: dict[str, Any]) -> None:
    result = roll.TRAINER.read_requirements(roll.TRAINER.guess_settings("math", "new", {}, facts)).facts
    assert all(facts[name] == result[name] for name in facts if name in result)
    same = roll.TRAINER.guess_settings("math", "new", CONFIG, facts)
    assert roll.TRAINER.read_requirements(same).facts == read_requirements().facts


def test_reading_the_facts_of_a_batch_needs_no_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STEP.parent, tmp_path / "train")
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    (location,) = registry.find_steps(tmp_path)
    result = registry.read_step(location)
    assert isinstance(result, LoadableStep) and result.facts == FACTS
