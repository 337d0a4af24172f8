"""`rolloutdeck check --trainer verl`: each way of losing samples is found, and the printed lines fix it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_api.registry import load_trainer
from rolloutdeck.trainer_config import load as configuration

verl = load_trainer("verl")
GOOD = {
    "trainer.rollout_data_dir": "/d/rollout",
    "trainer.validation_data_dir": "/d/val",
    "trainer.logger": ["console", "file"],
    "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_ROOT": "/d",
}


def check(complete: bool = False, **changed: Any) -> list[Any]:
    settings = {**GOOD, **{name.replace("__", "."): value for name, value in changed.items()}}
    return verl.check_settings({name: value for name, value in settings.items() if value is not ...}, complete=complete)


def check_with_fix(finding: Any, **changed: Any) -> list[Any]:
    """Returns what is still found after the printed lines were added to the trainer's command line."""
    settings = {**GOOD, **{name.replace("__", "."): value for name, value in changed.items()}}
    fix = configuration.parse_overrides(word for line in finding.fix for word in shlex.split(line))
    return verl.check_settings({**settings, **fix}, complete=False)


def test_settings_that_keep_everything_give_no_finding() -> None:
    assert check() == []


LOSSES: list[tuple[dict[str, Any], str]] = [
    ({"trainer__validation_data_dir": "/d/rollout/"}, "same folder"),
    ({"trainer__rollout_data_dir": None}, "rollout_data_dir is not set"),
    ({"trainer__validation_data_dir": None}, "validation_data_dir is not set"),
    ({"trainer__logger": ["console", "wandb"]}, "no `file`"),
    ({"trainer__logger": "console"}, "no `file`"),
    ({"trainer__log_val_generations": 8}, "log_val_generations=8"),
    ({"trainer__log_val_generations": 8, "trainer__logger": ["file", "rl_insight"]}, "log_val_generations=8"),
    ({"skip__rollout__enable": True}, "V1 trainer reads skip.rollout_tq only"),
    ({"skip__rollout_tq__enable": True}, "skip.rollout_tq is enabled without steps"),
    ({"skip__rollout_tq__enable": True, "trainer__use_v1": False}, "V0 trainer reads skip.rollout only"),
    ({"skip__rollout__enable": True, "async_training__staleness_threshold": 0.1}, "reads skip.async_rollout only"),
    ({"skip__rollout__enable": True, "rollout__nnodes": 1}, "reads no skip role at all"),
    (
        {
            "trainer__log_val_generations": 8,
            "trainer__logger": ["file", "wandb"],
            "async_training__staleness_threshold": 0.1,
        },
        "table is dropped",
    ),
    (
        {
            "trainer__log_val_generations": 8,
            "trainer__logger": ["file", "trackio"],
            "async_training__staleness_threshold": 0.1,
        },
        "ends the run",
    ),
]


@pytest.mark.parametrize(("changed", "says"), LOSSES)
def test_each_way_of_losing_data_is_found_and_the_printed_lines_fix_it(changed: dict[str, Any], says: str) -> None:
    (finding,) = check(**changed)
    assert says in f"{finding.title} {finding.lost_data}" and finding.lost_data
    assert [issue for issue in check_with_fix(finding, **changed) if issue.lost_data] == []


def test_generations_that_a_logger_shows_are_not_lost() -> None:
    assert check(trainer__log_val_generations=8, trainer__logger=["file", "wandb"]) == []


@pytest.mark.parametrize("logger", ["tensorboard", "mlflow"])
def test_a_logger_that_writes_in_any_process_shows_the_generations_of_a_fully_async_run(logger: str) -> None:
    fully_async = {"trainer__log_val_generations": 8, "async_training__staleness_threshold": 0.1}
    assert check(**fully_async, trainer__logger=["file", logger]) == []
    assert check(**fully_async, trainer__logger=["file", logger, "swanlab"]) != []


def test_with_our_plugin_nothing_is_lost_whatever_files_are_written() -> None:
    values = {"trainer__logger": ["console", "rolloutdeck"], "trainer__log_val_generations": 8}
    assert check(**values, trainer__rollout_data_dir=None, trainer__validation_data_dir=None) == []
    (same,) = check(**values, trainer__validation_data_dir="/d/rollout")
    assert "same folder" in same.title


def test_a_correct_skip_role_gives_no_finding_and_the_fix_of_a_wrong_one_keeps_its_steps() -> None:
    assert check(skip__rollout_tq__enable=True, skip__rollout_tq__steps=[3]) == []
    (finding,) = check(skip__rollout__enable=True, skip__rollout__steps=[1, 2])
    assert "'skip.rollout_tq.steps=[1,2]'" in finding.fix


def test_a_run_that_never_validates_needs_no_folder_for_it() -> None:
    assert check(trainer__validation_data_dir=None, trainer__val_before_train=False, trainer__test_freq=-1) == []


def test_a_relative_path_and_a_missing_log_root_are_hints() -> None:
    (relative,) = check(trainer__rollout_data_dir="dumps/rollout")
    (unnamed,) = check(**{"ray_kwargs__ray_init__runtime_env__env_vars__VERL_FILE_LOGGER_ROOT": ...})
    assert not relative.lost_data and not unnamed.lost_data


@pytest.mark.parametrize("setting", ["trainer__rollout_data_dir", "trainer__validation_data_dir"])
def test_the_home_folder_is_not_expanded_by_verl(setting: str) -> None:
    (finding,) = check(**{setting: "~/dumps"})
    assert "is a relative path" in finding.title and "verl does not expand ~" in finding.title
    assert check_with_fix(finding, **{setting: "~/dumps"}) == []


def test_a_complete_configuration_without_use_v1_is_of_the_v0_trainer() -> None:
    assert check(complete=True, skip__rollout__enable=True, skip__rollout__steps=[1]) == []


def test_each_role_that_the_trainer_reads_is_useless_without_steps() -> None:
    v0 = {"trainer__use_v1": False, "skip__rollout__enable": True}
    fully_async = {"async_training__staleness_threshold": 0.1, "skip__async_rollout__enable": True}
    for changed in (v0, fully_async, {"skip__rollout_tq__enable": True, "skip__rollout_tq__steps": []}):
        (finding,) = check(**changed)
        assert "without steps" in finding.title and "empty list" in finding.lost_data


@pytest.mark.parametrize(
    "changed",
    [
        {"optim.lr": 1e-5},
        {"checkpoint.save_contents": ["model"]},
        {"data.output_path": "/d/out.parquet", "actor_rollout_ref.rollout.n": 1},
    ],
)
def test_programs_of_verl_that_train_on_a_data_set_or_only_generate_lose_nothing(changed: dict[str, Any]) -> None:
    (finding,) = verl.check_settings({"trainer.logger": ["console"], **changed}, complete=False)
    assert not finding.lost_data and not finding.fix


YAML = """\
# resolved by Hydra
trainer:
  project_name: math   # a comment
  logger:
  - console
  - "file"
  rollout_data_dir: '/d/${trainer.project_name}/rollout'
  validation_data_dir: ${trainer.rollout_data_dir}
  use_v1: true
  nothing: null
  long: ${oc.select:a.very.long.name,
    null}
skip:
  rollout: {}
  rollout_tq:
    steps: [1, 2]
lr: 1e-6
"""


def test_yaml_is_read_with_its_references(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(YAML)
    settings, complete = configuration.read_config_file(file)
    assert (
        complete and settings["trainer.logger"] == ["console", "file"] and settings["skip.rollout_tq.steps"] == [1, 2]
    )
    assert settings["trainer.validation_data_dir"] == settings["trainer.rollout_data_dir"] == "/d/math/rollout"
    assert settings["trainer.use_v1"] is True and settings["trainer.nothing"] is None


def test_yaml_without_pyyaml_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = tmp_path / "config.yaml"
    file.write_text(YAML)
    with pytest.raises(UsageError, match=r"config.yaml is YAML, which needs PyYAML\. .* as JSON\."):
        configuration.read_config_file(file)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", json.dumps({"trainer": {"logger": ["console"], "rollout_data_dir": "/d/r"}})),
        ("run.sh.args", "trainer.logger='[\"console\"]' \\\n  +trainer.rollout_data_dir=/d/r  # where\n"),
        ("overrides.yaml", "- trainer.logger=[console]\n- ++trainer.rollout_data_dir=/d/r\n"),
    ],
)
def test_settings_come_from_json_overrides_or_hydras_own_list(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    settings, _ = configuration.read_config_file(tmp_path / name)
    assert settings == {"trainer.logger": ["console"], "trainer.rollout_data_dir": "/d/r"}


def test_the_command_prints_what_is_lost_and_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(YAML)
    status = main(["check", "--trainer", "verl", "--config", str(tmp_path / "config.yaml")])
    out = capsys.readouterr().out
    assert status == 1 and "same folder" in out and "trainer.validation_data_dir=/d/math/rollout_val" in out


def test_overrides_on_the_command_line_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(YAML)
    words = ["check", "--trainer", "verl", "--config", str(tmp_path / "config.yaml")]
    assert main([*words, "trainer.validation_data_dir=/d/val"]) == 0


def test_without_settings_the_recommended_ones_are_printed_and_pass_the_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--trainer", "verl"]) == 0
    out = capsys.readouterr().out
    assert "+ray_kwargs.ray_init.runtime_env.env_vars.ROLLOUTDECK_URL=" in out and "watch --tree" in out
    assert "skip.rollout_tq.enable=True" in out and "experiment_name}/skip'" in out
    pasted = [word for line in [*verl.recommended_lines(), *verl.store_lines()] for word in shlex.split(line)]
    assert main(["check", "--trainer", "verl", *pasted]) == 0


@pytest.mark.parametrize(
    ("value", "hydra_text"),
    [
        ("http://deck:8460", "http://deck:8460"),
        ("2024", '"2024"'),  # Ray refuses a number
        ("true", '"true"'),
        ("数学", '"数学"'),  # Hydra cannot parse these without quotes
        ("qwen (a)", '"qwen (a)"'),
        ("it's", '"it\'s"'),
    ],
)
def test_environment_variables_are_texts_for_hydra(value: str, hydra_text: str) -> None:
    assert verl.environment_lines is not None
    name = "ray_kwargs.ray_init.runtime_env.env_vars.ROLLOUTDECK_RUN"
    words = [word for line in verl.environment_lines({"ROLLOUTDECK_RUN": value}) for word in shlex.split(line)]
    assert words == [f"+{name}={hydra_text}"]
    assert configuration.parse_overrides(words) == {name: value}


@pytest.mark.parametrize("words", [["trainer.logger"], ["=x"], ["a b"]])
def test_a_word_that_is_no_setting_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--trainer", "verl", *words]) == 2
    assert "key=value" in capsys.readouterr().err


def test_an_endless_configuration_file_is_refused_with_a_clear_message() -> None:
    with pytest.raises(UsageError, match="/dev/zero is larger than 16 MiB; is it a configuration?"):
        configuration.read_config_file(Path("/dev/zero"))
