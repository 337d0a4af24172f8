"""Settings of a trainer are read from flags, Python files, and YAML that includes other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_config import load
from rolloutdeck.trainer_config.load import resolve_references


def read_config(folder: Path, name: str, text: str) -> dict[str, Any]:
    (folder / name).write_text(text)
    return load.read_config_file(folder / name)[0]


def test_a_file_of_flags_and_overrides_is_read_as_words(tmp_path: Path) -> None:
    text = "--num-rollout 3000 \\\n  --colocate  # on one node\n  data.train_files=/d/t.parquet "
    result = read_config(tmp_path, "flags", text + "'trainer.logger=[console,file]'\n")
    assert (result["num_rollout"], result["colocate"], result["data.train_files"]) == (3000, True, "/d/t.parquet")
    assert result["trainer.logger"] == ["console", "file"]


@pytest.mark.parametrize(("name", "text"), [("run.sh", "python3 train.py --a 1\n"), ("run", "#!/bin/sh\ntrain a=1\n")])
def test_a_shell_script_is_refused_with_what_to_give_instead(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is a shell script.*key=value or --flag value"):
        read_config(tmp_path, name, text)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--a-b", "1"], {"a_b": 1}),
        (["--a=x=y"], {"a": "x=y"}),
        (["--on", "--a", "-1"], {"on": True, "a": -1}),
        (["--a", "x", "y", "b=2", "+c.d=[1,2]"], {"a": ["x", "y"], "b": 2, "c.d": [1, 2]}),
        (["--a", "1", "--a", "2"], {"a": 2}),
        (
            ["a=001", "b=-07", "c=1_000", "d=0", "e=0.5", "f=1e-6", "g=１"],
            {"a": "001", "b": "-07", "c": 1000, "d": 0, "e": 0.5, "f": 1e-6, "g": "１"},
        ),
    ],
)
def test_flags_and_overrides_are_parsed_as_settings(words: list[str], found: dict[str, Any]) -> None:
    assert load.parse_overrides(words) == found


PYTHON = """\
from trl import GRPOConfig, GRPOTrainer
total_steps = 120
scales = [(4, 4), (16, 16)]
half = total_steps // 2

def main():
    hidden = 1
    config = GRPOConfig(output_dir="out", log_completions=True, logging_steps=1, learning_rate=rate(), **more)
    trainer = trl.GRPOTrainer(model=model, args=config, callbacks=[Other()])
    trainer.add_callback(RolloutdeckCallback(keep="kept"))

raise SystemExit("never run")
"""


def test_constants_and_arguments_are_read_from_a_python_file_without_running_it(tmp_path: Path) -> None:
    result = read_config(tmp_path, "train.py", PYTHON)
    assert (result["total_steps"], result["scales"], result["half"]) == (120, [(4, 4), (16, 16)], "total_steps // 2")
    assert (result["output_dir"], result["log_completions"], result["learning_rate"]) == ("out", True, "rate()")
    assert result["trainer"] == "GRPOTrainer" and result["callbacks"] == "[Other()] RolloutdeckCallback(keep='kept')"
    assert "hidden" not in result


def test_yaml_includes_its_default_files_and_its_own_values_win(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "traj.yaml").write_text("manager: a.Traj\nsteps: 5\nenv:\n  cls: ${manager}\n")
    text = "defaults:\n  - ../envs/traj@_here_\n  - ../gone@_here_\n  - _self_\nsteps: 7\n"
    (tmp_path / "runs").mkdir()
    result = read_config(tmp_path / "runs", "run.yaml", text)
    assert (result["manager"], result["env.cls"], result["steps"]) == ("a.Traj", "a.Traj", 7)


def test_a_group_of_settings_keeps_what_an_included_file_says_of_it(tmp_path: Path) -> None:
    (tmp_path / "rollout.yaml").write_text("trainer:\n  rollout_data_dir: /dumps\n  logger: [console]\n")
    (tmp_path / "base.yaml").write_text("defaults: [rollout]\ntrainer:\n  nodes: 2\n")
    result = read_config(tmp_path, "run.yaml", "defaults: [base, _self_]\ntrainer:\n  project_name: x\n")
    names = ("rollout_data_dir", "logger", "nodes", "project_name")
    assert [result[f"trainer.{name}"] for name in names] == ["/dumps", ["console"], 2, "x"]


@pytest.mark.parametrize("included", ["defaults: [gone]\n", "defaults: [run]\n"])
def test_settings_are_not_complete_if_an_included_file_includes_others_that_are_not_read(
    tmp_path: Path, included: str
) -> None:
    (tmp_path / "base.yaml").write_text(included)
    (tmp_path / "run.yaml").write_text("defaults: [base]\nsteps: 1\n")
    settings, is_complete = load.read_config_file(tmp_path / "run.yaml")
    assert settings["steps"] == 1 and not is_complete


def test_yaml_dates_are_texts(tmp_path: Path) -> None:
    result = read_config(tmp_path, "run.yaml", "day: 2026-11-29\nend: 2026-02-30 10:00:00\n2026-11-30: a\n")
    assert result == {"day": "2026-11-29", "end": "2026-02-30 10:00:00", "2026-11-30": "a"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train.py", "def (:", "train.py is not a Python file"),
        ("train.py", "\0", "train.py is not a Python file"),
        ("words", "a='open", "words is not a list of key=value"),
        ("words", "log_completions", "is not a setting"),
        ("deep.yaml", f"a: {'[' * 3000}{']' * 3000}", "deep.yaml is nested too deeply"),
        ("deep.json", f'{{"a": {"[" * 100_000}{"]" * 100_000}}}', "deep.json is nested too deeply"),
        ("self.yaml", "a: &a\n  b: *a\n", "self.yaml is nested too deeply"),
        ("long.json", f'{{"a": {"9" * 5000}}}', "long.json is not valid JSON"),
        ("long.yaml", f"a: {'9' * 5000}\n", "long.yaml is not valid YAML"),
        ("int.yaml", "a: !!int x\n", "int.yaml is not valid YAML"),
        ("int.yaml", "a: !!int\n", "int.yaml is not valid YAML"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_reason(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_config(tmp_path, name, text)


def test_a_deeply_nested_python_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a Python file"):
        read_config(tmp_path, "deep.py", "(" * 5000 + ")" * 5000)


def test_many_brackets_and_long_names_are_read_quickly(tmp_path: Path) -> None:
    assert read_config(tmp_path, "words", f"a={'[' * 3000}{']' * 3000} b=[1,[2]]")["b"] == [1, "[2]"]
    assert read_config(tmp_path, "far.yaml", f"defaults:\n  - {'x' * 5000}\nsteps: 7\n")["steps"] == 7


def test_the_state_of_a_checkpoint_is_read_as_settings(tmp_path: Path) -> None:
    state = {"logging_steps": 10, "log_history": [{"loss": 1.0, "step": 10}]}
    assert read_config(tmp_path, "trainer_state.json", json.dumps(state))["log_history"] == state["log_history"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "values", [{"a": "${a} " * 20}, {"a": "${b} " * 20, "b": "${a} " * 20}, {"a": "x" * 60_000, "b": "${a} ${a}"}]
)
def test_a_reference_that_grows_without_end_is_not_replaced(values: dict[str, str]) -> None:
    assert resolve_references(values) == values


def test_references_to_other_settings_are_replaced() -> None:
    settings = {"a": "${b}/x", "b": "${c}", "c": 7, "d": "${oc.env:HOME}/${c}", "e": "${missing} ${c}"}
    assert resolve_references(settings) == {"a": "7/x", "b": 7, "c": 7, "d": "${oc.env:HOME}/7", "e": "${missing} 7"}
