"""The steps of ROLL that can be loaded again, and what a run asks for."""

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


def put(folder: Path, name: str = "train/step_000007.pkl", cut: int = 0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(STEP.read_bytes()[: -cut or None])
    return path


def requirements(**more: Any) -> RollRequirements:
    result = roll.TRAINER.read_requirements({**CONFIG, **more})
    assert isinstance(result, RollRequirements)
    return result


def test_a_batch_of_training_is_a_step_with_its_facts(tmp_path: Path) -> None:
    path = put(tmp_path)
    (spot,) = registry.find_steps(tmp_path)
    assert registry.read_step(spot) == LoadableStep(
        path.parent, "rollout", 7, "global_step", (path.name,), "mock", FACTS
    )
    assert registry.find_steps(path) == [spot]
    assert spot.has_samples


def test_a_batch_that_is_still_being_written_waits_and_one_that_was_damaged_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, cut=1)
    (spot,) = registry.find_steps(tmp_path)
    assert spot.reason == "steps to replay, as ROLL's batch is truncated"
    data = bytearray(STEP.read_bytes())
    data[300:320] = b"x" * 20
    put(tmp_path).write_bytes(bytes(data))
    (spot,) = registry.find_steps(tmp_path)
    assert str(registry.read_step(spot)).startswith("steps to replay, as ROLL's batch can't be read: ")


@pytest.mark.parametrize("name", ["val/step_000001.pkl", "train/batch_000001.pkl", "train/.old/step_000001.pkl"])
def test_validation_and_other_pickles_are_no_steps(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    assert registry.find_steps(tmp_path) == []


def test_another_programs_pickle_of_this_name_is_no_step(tmp_path: Path) -> None:
    put(tmp_path).write_bytes(b"\x80\x04N.")
    assert registry.find_steps(tmp_path) == []


def test_what_pull_put_there_is_another_runs(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / ".rolloutdeck-pull.json").write_text("{}")
    (spot,) = registry.find_steps(tmp_path)
    assert spot.reason == "steps to replay that `rolloutdeck pull` wrote"


def test_a_run_asks_for_batches_of_the_shape_of_its_settings() -> None:
    assert requirements().facts == {**FACTS, "model": "Qwen/Qwen3-8B"}
    full = requirements(response_length=None, sequence_length=384)
    assert full.facts == {**FACTS, "model": "Qwen/Qwen3-8B"}


def test_of_a_run_of_agents_nothing_is_known_but_the_format() -> None:
    result = requirements(**{"train_env_manager.group_size": 4})
    assert set(result.facts) == {"role", "format", "serialisation", "parameter_sync_step"}
    assert "eval_steps: 0" in result.build_settings("/into", [0])


def test_every_step_from_0_on_is_a_file_of_one_folder() -> None:
    result = requirements()
    assert (result.first, result.shared, result.total_steps) == (0, True, 3)
    assert result.get_step_folder(12) / result.get_file_name("step_000040.pkl", 12) == Path("train/step_000012.pkl")


def test_the_lines_for_its_yaml_load_as_many_steps_as_there_are_without_a_gap() -> None:
    assert requirements().build_settings("/data/my runs", [0, 1, 4]) == [
        "rollout_mock:",
        "  enable: true",
        "  mode: mock",
        '  dump_dir: "/data/my runs"',
        "max_steps: 2",
        "validation: null",
    ]


def test_a_gap_is_told_as_roll_ends_there() -> None:
    (gap,) = [text for text in requirements().build_notes([0, 1, 4], moved=True) if "max_steps" in text]
    assert "max_steps is 2, as step 2 has none, and later steps are not reached" in gap
    assert not any("max_steps" in text for text in requirements().build_notes([0, 1, 2], moved=True))
    assert any("max_steps is 0, as step 0 has none" in text for text in requirements().build_notes([5], moved=True))


def test_a_step_of_several_files_is_none_of_rolls() -> None:
    with pytest.raises(NotReplayableError, match="not a batch that ROLL's rollout_mock wrote"):
        requirements().select_files("rollout", ["gen_batch.dp", "meta.json"])
    assert requirements().select_files("rollout", ["step_000001.pkl"]) == ["step_000001.pkl"]


def test_a_run_of_several_domains_is_refused_as_each_would_load_the_same_file() -> None:
    domains = {f"actor_train.data_args.domain_interleave_probs.{name}": 0.5 for name in ("math_rule", "code")}
    with pytest.raises(UsageError, match=r"2 domains \(code, math_rule\).*the batch of the last domain"):
        requirements(**domains)


@pytest.mark.parametrize("config", [{}, {"trainer.total_training_steps": 5}, {"max_steps": 5, "beta": 0.0}])
def test_other_trainers_settings_are_not_taken_for_rolls(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not settings of ROLL"):
        roll.TRAINER.read_requirements(config)


def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="rollout_batch_size=many is not a whole number"):
        requirements(rollout_batch_size="many")


@pytest.mark.parametrize("facts", [FACTS, {name: fact for name, fact in FACTS.items() if name in ("role", "rows")}])
def test_a_run_of_which_nothing_is_known_asks_for_what_was_pinned(facts: dict[str, Any]) -> None:
    result = roll.TRAINER.read_requirements(roll.TRAINER.guess_settings("math", "new", {}, facts)).facts
    assert all(facts[name] == result[name] for name in facts if name in result)
    same = roll.TRAINER.guess_settings("math", "new", CONFIG, facts)
    assert roll.TRAINER.read_requirements(same).facts == requirements().facts


def test_looking_at_a_batch_needs_no_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STEP.parent, tmp_path / "train")
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    (spot,) = registry.find_steps(tmp_path)
    result = registry.read_step(spot)
    assert isinstance(result, LoadableStep) and result.facts == FACTS
