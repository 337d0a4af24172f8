"""Steps that TRL's callback kept are written by `pull` for a trainer without a server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay.folder import PULL_MANIFEST
from rolloutdeck.trainers import trl
from rollouts.models import Pin, Project, Run
from rollouts.pins import artifact_check, pins
from tests.rolloutdeck.replay.pull.plans import RunCommand, hash_files, save_plan
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import generation, index_file, line, list_samples
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)

# As in `GRPOConfig.to_dict()` of TRL 1.16.0.
CONFIG = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_generations": 2,
    "generation_batch_size": 2, "max_completion_length": 12, "max_steps": 3, "output_dir": "out",
}  # fmt: skip
FACTS = {
    "role": "rollout", "format": "trl-rollout", "rows": 4, "prompts": 2, "samples_per_prompt": 2,
    "max_response_length": 12, "parameter_sync_step": 1,
}  # fmt: skip


def build_step_files(step: int) -> dict[str, bytes]:
    """The two generations of a step, as `trl.plugin.step_files` writes them."""
    row = {"prompt": f"What is {step}?", "prompt_ids": [1, step], "completion_ids": [7, 8]}
    values = {"format": "trl-rollout", "step": step, "rows": [row, row]}
    return {f"rollout-{call}.json": json.dumps({**values, "call": call}).encode() for call in (0, 1)}


def create_pin(run: Run, step: int, by: User, **facts: Any) -> Pin:
    row = register_artifact(run, step, build_step_files(step), role="rollout", facts={**FACTS, **facts})
    artifact_check.check_artifact(upload_files(row, build_step_files(step)).pk)
    return pins.pin_step(run, step, by)[0]


def build_expected_hashes(step: int, target: int) -> dict[str, str]:
    files = build_step_files(step).items()
    return {f"step_{target:06d}/{name}": hashlib.sha256(data).hexdigest() for name, data in files}


@pytest.fixture
def new_run(project: Project) -> Run:
    return builders.run(project, "grpo-2", config=CONFIG, framework="trl")


def test_a_step_is_written_to_its_target_and_the_line_that_replays_it_is_printed(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 2), (pin := create_pin(old_run, 3, owner), 3))
    assert pull("--trainer", "trl") == 0
    assert hash_files(tmp_path / "into") == {**build_expected_hashes(1, 2), **build_expected_hashes(3, 3)}
    result = capsys.readouterr()
    assert result.out.splitlines() == [
        "from rolloutdeck.trainers.trl import replay_rollout_func",
        f'trainer = GRPOTrainer(..., rollout_func=replay_rollout_func(folder="{tmp_path / "into"}"))',
    ]
    assert "All other steps, and every eval, are generated; no server is used." in result.err
    assert "Some steps have other numbers than when they were generated" in result.err
    assert "with these settings" not in result.err
    record = json.loads((tmp_path / "into" / PULL_MANIFEST).read_text())
    assert record["pins"]["3"] == pin.pk and record["on_mismatch"] == "generate"


def test_a_script_gives_the_settings_of_a_run_that_has_not_begun(
    pull: RunCommand, old_run: Run, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 2))
    arguments = ", ".join(f"{name}={value!r}" for name, value in CONFIG.items())
    (tmp_path / "train.py").write_text(f"GRPOTrainer(model=choose(), args=GRPOConfig({arguments}, **more))\n")
    assert pull("--trainer", "trl", "--config", str(tmp_path / "train.py"), run="grpo-9") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(1, 2)
    config = Run.objects.get(name="grpo-9").config
    assert config["num_generations"] == 2 and not [name for name in config if "(" in name]


def test_repeat_last_writes_the_step_until_the_end_of_the_training(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 1), action="repeat_last")
    assert pull("--trainer", "trl") == 0
    assert hash_files(tmp_path / "into") == {
        **build_expected_hashes(1, 1),
        **build_expected_hashes(1, 2),
        **build_expected_hashes(1, 3),
    }


def test_a_step_with_a_flagged_row_or_of_another_shape_is_skipped(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    index_file(old_run, line(generation(step=1)))
    sample = list_samples(old_run)[0]
    builders.flag_row(sample, owner)
    save_plan(
        owner, (create_pin(old_run, 1, owner), 1), (create_pin(old_run, 2, owner, rows=8), 2), on_selected="exclude"
    )
    assert pull("--trainer", "trl", "--skip-conflicts") == 2
    message = capsys.readouterr().err
    assert "it has flagged rows, and TRL can only replay a complete step" in message
    assert "rows: 8 pinned, 4 requested" in message


@pytest.mark.parametrize("action", ["mask", "drop"])
def test_selected_rows_get_a_mask_of_zeros_in_the_file(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, action: str
) -> None:
    body = b"".join(line({"prompt": "p", "response": str(index), "group": "1", "index": index}) for index in (0, 1))
    index_file(old_run, body, step=1, format="native")
    builders.flag_row(list_samples(old_run)[1], owner)
    save_plan(owner, (create_pin(old_run, 1, owner), 1), on_selected=action)
    assert pull("--trainer", "trl") == 0
    stored = [json.loads((tmp_path / f"into/step_000001/rollout-{call}.json").read_bytes())["rows"] for call in (0, 1)]
    zeros = {(call, index) for call in (0, 1) for index in (0, 1) if stored[call][index].get("env_mask") == [0, 0]}
    assert zeros == ({(1, 1)} if action == "mask" else {(1, 0), (1, 1)})
    assert "env_mask" not in stored[0][0], "files without a selected row are unchanged"


def test_the_number_of_rows_of_a_step_comes_from_the_trainers_arguments() -> None:
    arguments = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_steps": -1,
    }
    requirements = trl.TRAINER.read_requirements(arguments)
    assert (requirements.facts["rows"], requirements.facts["prompts"], requirements.total_steps) == (8, 2, None)
    assert trl.TRAINER.read_requirements(CONFIG).facts["rows"] == 4
    with pytest.raises(UsageError, match="have no num_generations, per_device_train_batch_size"):
        trl.TRAINER.read_requirements({"max_steps": 3})


@pytest.mark.parametrize(
    "files", [["rollout-1.json"], ["rollout-0.json", "notes.txt"], ["gen_batch.dp", "meta.json"], []]
)
def test_other_files_are_no_step_of_trl(files: list[str]) -> None:
    with pytest.raises(NotReplayableError, match="not a step that a RolloutdeckCallback of TRL stored"):
        trl.TRAINER.read_requirements(CONFIG).select_files("rollout", files)


@pytest.mark.parametrize("is_corrected", [False, True])
@pytest.mark.parametrize("max_prompt_length", [512, "unlimited"])
def test_a_run_with_unknown_settings_is_assumed_to_match_the_pinned_steps(
    max_prompt_length: int | str, is_corrected: bool
) -> None:
    facts = {
        **FACTS,
        "serialisation": "json",
        "max_prompt_length": max_prompt_length,
        "rollout_correction": is_corrected,
    }
    assert dict(trl.TRAINER.read_requirements(trl.TRAINER.guess_settings("math", "next", {}, facts)).facts) == facts


def test_rollout_correction_is_on_for_vllm_unless_it_is_switched_off() -> None:
    values = [
        {},
        {"use_vllm": False},
        {"use_vllm": True},
        {"use_vllm": True, "vllm_importance_sampling_correction": False},
    ]
    corrections = [trl.TRAINER.read_requirements({**CONFIG, **more}).facts.get("rollout_correction") for more in values]
    assert corrections == [None, False, True, False]
