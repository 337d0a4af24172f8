"""`rolloutdeck check` of slime, TRL, ROLL and CURE: each silent loss is found, and the printed lines fix it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.trainer_api.types import SettingsIssue
from rolloutdeck.trainer_config import load
from rolloutdeck.trainers.cure import settings_check as cure_check
from rolloutdeck.trainers.roll import settings_check as roll_check
from rolloutdeck.trainers.slime import settings_check as slime_check
from rolloutdeck.trainers.trl import settings_check as settings_check

Settings = dict[str, Any]
Case = tuple[Any, Settings, str]

GOOD: dict[Any, Settings] = {
    slime_check: {
        "dump_details": "/d/run",
        "custom_rollout_log_function_path": "rolloutdeck.trainers.slime.log_rollout",
        "custom_eval_rollout_log_function_path": "rolloutdeck.trainers.slime.log_eval",
        "eval_interval": 20,
        "eval_prompt_data": ["aime", "/data/aime.jsonl", "gsm8k", "/data/gsm8k.jsonl"],
        "num_rollout": 3000,
    },
    settings_check: {"log_completions": True, "logging_steps": 1, "output_dir": "out", "trl_version": "1.16.0"},
    roll_check: {
        "exp_name": "math",
        "rollout_dump_dir": "/d/rollout",
        "track_with": "rolloutdeck",
        "eval_steps": 10,
        "max_steps": 20,
        "rewards.math_rule.worker_cls": "roll.MathRuleRewardWorker",
    },
    cure_check: {"total_steps": 120, "eval_interval": 10},
}
PLAIN: Settings = {"dump_details": None, "custom_rollout_log_function_path": None, "eval_interval": None}
DUMP: Settings = {**PLAIN, "save_debug_rollout_data": "/d/{rollout_id}.pt"}
OTHER_LOG = {"custom_rollout_log_function_path": "mine.log"}
AGENT = "roll.pipeline.agentic.env_manager."
NATIVE = {"env_manager_cls": f"{AGENT}agent_native_env_manager.AgentNativeStepEnvManager", "eval_steps": 0}
MOCK = {"rollout_mock.enable": True, "rollout_mock.mode": "dump", "rollout_mock.dump_dir": "/d/mock"}
DOMAINS = {f"actor_train.data_args.domain_interleave_probs.{name}": 0.5 for name in ("math", "code")} | MOCK


def find_issues(check: Any, changed: Settings) -> list[SettingsIssue]:
    return list(check.check_settings({**GOOD[check], **changed}, complete=False))


@pytest.mark.parametrize("check", GOOD)
def test_settings_that_keep_everything_lose_nothing(check: Any) -> None:
    assert [finding for finding in find_issues(check, {}) if finding.lost_data] == []
    assert check is cure_check or find_issues(check, {}) == []


LOSSES: list[Case] = [
    (slime_check, PLAIN, "written nowhere"),
    (slime_check, {**PLAIN, **OTHER_LOG}, "written nowhere"),
    (slime_check, {**PLAIN, "save_debug_rollout_data": "/d/rollout.pt"}, "and so do evals"),
    (slime_check, {**PLAIN, "save_debug_rollout_data": "/d/{step}.pt"}, "ends the run"),
    (slime_check, {**PLAIN, "save_debug_rollout_data": "/d/{rollout_id.pt"}, "ends the run"),
    (slime_check, {**DUMP, "save_debug_train_data": "/d/train.pt"}, "writes over the file of the one before."),
    (slime_check, {**DUMP, "save_debug_train_data": "/d/{rollout_id}.pt"}, "ValueError before the first rollout"),
    (slime_check, {"custom_eval_rollout_log_function_path": None}, "Which of the 2 data sets"),
    (slime_check, {"dump_details": None, "custom_eval_rollout_log_function_path": None}, "not called for evals"),
    (slime_check, {"dynamic_sampling_filter_path": "slime.x.check_std"}, "in no dump"),
    (slime_check, {"load_forge_rollout_data": "/d/{rollout_id}.pt"}, "only that rollout function reads it"),
    (settings_check, {"log_completions": False}, "written nowhere"),
    (settings_check, {"logging_steps": 5}, "earlier ones are lost"),
    (settings_check, {"steps_per_generation": 1, "gradient_accumulation_steps": 4}, "each step generates 4 times"),
    (
        settings_check,
        {"generation_batch_size": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
        "gradient_accumulation_steps is above what generation_batch_size fills",
    ),
    (settings_check, {"logging_steps": 5, "num_iterations": 4}, "earlier ones are lost"),
    (settings_check, {"logging_steps": 0.1, "max_steps": 50}, "earlier ones are lost"),
    (settings_check, {"logging_strategy": "epoch"}, "when the trainer logs"),
    (settings_check, {"eval_strategy": "steps", "eval_steps": 50}, "overwrites the train file of its step"),
    (settings_check, {"eval_strategy": "IntervalStrategy.EPOCH"}, "overwrites the train file of its step"),
    (settings_check, {"trainer": "RLOOTrainer"}, "writes no file"),
    (settings_check, {"trl_version": "0.27.2"}, "from 0.28 on"),
    (roll_check, {"rollout_dump_dir": None, "track_with": "wandb"}, "Generations are written nowhere"),
    (roll_check, {**MOCK, "rollout_dump_dir": None}, "Metrics are written nowhere"),
    (roll_check, {"rollout_dump_dir": "./output/rollout_dump"}, "ignores others without a message"),
    (roll_check, {**MOCK, "generate_opt_level": 0}, "returns before it dumps"),
    (roll_check, {**DOMAINS, "rollout_dump_dir": None, "track_with": "wandb"}, "the same train/step_N.pkl"),
    (roll_check, {**DOMAINS, "rollout_mock.mode": "mock"}, "loaded for all"),
    (roll_check, {"save_logging_board_dir": "/d/board"}, "/d/boarddata_"),
    (roll_check, {"validation.data_args.file_name": ["v.jsonl"]}, "generated at eval_steps is written nowhere"),
    (roll_check, {"env_manager_cls": f"{AGENT}traj_env_manager.TrajEnvManager"}, "defines no columns"),
    (roll_check, {**NATIVE, "eval_steps": 5}, "Validation and training write the same"),
]


def parse_lines(check: Any, lines: tuple[str, ...], folder: Path) -> Settings:
    """Returns the settings of the printed lines, which have the format of their trainer."""
    if check is roll_check:
        (folder / "more.yaml").write_text("\n".join(lines) + "\n")
        return load.read_config_file(folder / "more.yaml")[0]
    words = [word for line in lines if not line.startswith("pip ") for word in shlex.split(line)]
    return load.parse_overrides(words)


@pytest.mark.parametrize(("check", "changed", "says"), LOSSES)
def test_each_silent_loss_is_found_and_the_printed_lines_fix_it(
    check: Any, changed: Settings, says: str, tmp_path: Path
) -> None:
    (finding,) = [item for item in find_issues(check, changed) if item.lost_data]
    assert says in f"{finding.title} {finding.lost_data}"
    assert [
        item for item in find_issues(check, {**changed, **parse_lines(check, finding.fix, tmp_path)}) if item.lost_data
    ] == []


HINTS: list[Case] = [
    (slime_check, {"dump_details": None}, "no rollout can be pinned"),
    (slime_check, {"save_debug_rollout_data": "/other/{rollout_id}.pt"}, "takes the place of"),
    (slime_check, {**DUMP, "save_debug_train_data": "/d/t_{rollout_id}.pt"}, "t_{rollout_id}.pt' has no {rank}"),
    (slime_check, {**PLAIN, "save_debug_rollout_data": "d/{rollout_id}.pt"}, "relative path"),
    (slime_check, OTHER_LOG, "if it returns True"),
    (slime_check, {"load_debug_rollout_data": "/{rollout_id}.pt", "eval_interval": None}, "shows their samples again"),
    (slime_check, {"load_debug_rollout_data": "/d/7.pt", "eval_interval": None}, "one file every time"),
    (slime_check, {"eval_config": "e.yaml", **DUMP, "eval_interval": 5, "eval_prompt_data": None,
                   "custom_eval_rollout_log_function_path": None}, "without their names"),
    (settings_check, {"num_iterations": 2}, "the same rows"),
    (settings_check, {"steps_per_generation": 8, "gradient_accumulation_steps": 4}, "the same rows"),
    (
        settings_check,
        {"rollout_func": "f", "trainer": "RLOOTrainer", "callbacks": "RolloutdeckCallback"},
        "no rollout_func",
    ),
    (roll_check, {**MOCK, "rollout_mock.dump_dir": "./dumps"}, "relative path"),
    (roll_check, DOMAINS, "the last batch is stored"),
    (roll_check, {"track_with": "wandb"}, "track_with: wandb writes no metrics next to the samples"),
    (roll_check, {"track_with": None}, "writes no metrics"),
    (roll_check, {**MOCK, "rollout_mock.mode": "mock"}, "train/step_000019.pkl"),
    (roll_check, {"save_logging_board_dir": "/d/board/"}, "computed twice"),
    (cure_check, {}, "120 steps write over temp_data/outputs-rl-*.json"),
    (cure_check, {}, "each eval writes over temp_data/outputs-eval-*.json"),
    (cure_check, {"separate_training": False}, "rl_data.json does not say"),
    (cure_check, {"optimized_model_name": "mine"}, "a second run with optimized_model_name=mine"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changed", "says"), HINTS)
def test_what_a_user_should_know_without_a_loss_is_a_hint(check: Any, changed: Settings, says: str) -> None:
    findings = find_issues(check, changed)
    assert [finding.title for finding in findings if says in finding.title]
    assert not [finding for finding in findings if finding.lost_data]


@pytest.mark.parametrize(
    "changed",
    [
        {"logging_steps": 4, "num_iterations": 4},
        {"logging_steps": 2, "steps_per_generation": 8, "gradient_accumulation_steps": 4},
        {"logging_steps": 0.02, "max_steps": 50},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 4},
    ],
)
def test_a_trl_run_that_logs_as_often_as_it_generates_loses_nothing(changed: Settings) -> None:
    assert [finding for finding in find_issues(settings_check, changed) if finding.lost_data] == []


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (settings_check, {"trainer": "SFTTrainer", "args": "SFTConfig()", "SFTConfig()": {}}),
        (slime_check, {"loss_type": "sft_loss", "num_rollout": 3000}),
        (slime_check, {"rollout_function_path": "slime.rollout.sft_rollout.generate_rollout"}),
    ],
)
def test_fine_tuning_generates_nothing_that_could_be_lost(check: Any, given: Settings) -> None:
    (finding,) = check.check_settings(given, complete=False)
    assert not finding.lost_data and "generates nothing" in finding.title


def test_a_pipeline_of_roll_that_only_generates_has_no_validation_to_overwrite() -> None:
    rollout_only = {**NATIVE, "eval_steps": 5, "actor_infer.num_gpus_per_worker": 1}
    assert find_issues(roll_check, rollout_only) == []
    (finding,) = find_issues(roll_check, {**rollout_only, "actor_train.training_args.learning_rate": 1e-6})
    assert "Validation and training" in finding.lost_data


def test_load_debug_rollout_data_of_slime_skips_evals_and_the_suggested_lines_keep_them() -> None:
    (finding,) = [
        item for item in find_issues(slime_check, {"load_debug_rollout_data": "/d/{rollout_id}.pt"}) if item.lost_data
    ]
    assert finding.lost_data == "Evals are skipped." and "nothing is generated" in finding.title
    other = load.parse_overrides(word for line in finding.fix for word in shlex.split(line))
    assert ["of rollout 0, again" in item.title for item in find_issues(slime_check, other)] == [True]


def test_a_rollout_func_that_an_old_trl_never_calls_is_found() -> None:
    (finding,) = [
        item for item in find_issues(settings_check, {"rollout_func": "f", "trl_version": "0.28.0"}) if item.lost_data
    ]
    assert "generates without a word" in finding.lost_data
    assert find_issues(settings_check, {"rollout_func": "f", "trl_version": "0.29.0"}) == []
    assert find_issues(settings_check, {"rollout_func": "f", "trl_version": "0.28.0", "use_vllm": True}) == []


def test_with_the_trl_callback_nothing_is_lost_whatever_is_logged() -> None:
    off = {"log_completions": False, "logging_steps": 50, "eval_strategy": "epoch", "trainer": "RLOOTrainer"}
    assert find_issues(settings_check, {**off, "callbacks": "[RolloutdeckCallback(keep='k')]"}) == []


def test_trls_own_default_of_logging_loses_nine_steps_of_ten() -> None:
    findings = settings_check.check_settings({"log_completions": True, "output_dir": "out"}, complete=False)
    assert [finding.title for finding in findings] == ["logging_steps is not set, so it is 10"]


def test_a_checkpoint_of_trl_shows_what_was_lost_and_nothing_that_is_not_in_it() -> None:
    state = {"logging_steps": 10, "eval_steps": 5, "log_history": [{"loss": 1.0}, {"eval_reward": 0.5, "step": 5}]}
    titles = [
        finding.title for finding in settings_check.check_settings({**state, "trl_version": "1.16.0"}, complete=True)
    ]
    assert titles == ["logging_steps=10", "evals of this run"]


def test_a_script_of_trl_that_leaves_its_config_to_a_command_line_is_not_judged_by_defaults() -> None:
    (finding,) = settings_check.check_settings({"trainer": "GRPOTrainer", "args": "training_args"}, complete=False)
    assert not finding.lost_data and "are not in this file" in finding.title


def test_the_check_of_roll_uses_the_environments_that_are_trained_on() -> None:
    tags = {"train_env_manager.tags": ["Native"], "custom_envs.Native.env_manager_cls": NATIVE["env_manager_cls"]}
    silent = {"env_manager_cls": f"{AGENT}traj_env_manager.TrajEnvManager", "eval_steps": 0}
    assert find_issues(roll_check, {**silent, **tags}) == []
    other = {"train_env_manager.tags": ["Sokoban"], "custom_env.Sokoban.env_manager_cls": f"{AGENT}x.StepEnvManager"}
    (finding,) = find_issues(roll_check, {**NATIVE, **other})
    assert finding.title == "rollout_dump_dir with StepEnvManager"


@pytest.mark.parametrize(
    "changed",
    [
        {"env_manager_cls": f"{AGENT}traj_env_manager.TrajEnvManager"},
        {**NATIVE, "eval_steps": 5},
        {**NATIVE, "eval_steps": 5, "rollout_dump_dir": "./output/rollout_dump"},
        {**MOCK},
        {"sft_train.data_args.file_name": ["d.json"]},
    ],
)
def test_the_printed_lines_for_roll_fix_all_losses_at_once(changed: Settings, tmp_path: Path) -> None:
    before = {"rollout_dump_dir": None, "track_with": "wandb", **changed}
    lines = tuple(line for item in find_issues(roll_check, before) for line in item.fix)
    after = find_issues(roll_check, {**before, **parse_lines(roll_check, lines, tmp_path)})
    assert [item for item in after if item.lost_data] == []


@pytest.mark.parametrize("own", ["sft_train.data_args.file_name", "chosen_key", "student.data_args.file_name"])
def test_pipelines_of_roll_that_generate_nothing_lose_no_samples(own: str) -> None:
    findings = find_issues(
        roll_check, {"rollout_dump_dir": None, own: "x", "validation.data_args.file_name": ["v.jsonl"]}
    )
    assert "generates nothing" in findings[0].title and [
        finding.title for finding in findings if finding.lost_data
    ] == ["track_with: rolloutdeck without a folder"]


def test_the_fix_keeps_the_settings_of_a_roll_tracker_and_does_not_print_them() -> None:
    findings = find_issues(roll_check, {"track_with": "wandb", "tracker_kwargs.api_key": "secret"})
    assert "present settings of tracker_kwargs" in findings[0].fix[-1] and "secret" not in str(findings)


PARSERS: dict[Any, Callable[[str], Settings]] = {
    slime_check: lambda line: load.parse_overrides(shlex.split(line)),
    settings_check: lambda line: load.parse_overrides([line]),
}


@pytest.mark.parametrize("check", PARSERS)
def test_the_recommended_lines_pass_the_check(check: Any) -> None:
    lines = [*check.recommended_lines(), *check.store_lines()]
    settings = {name: value for line in lines for name, value in PARSERS[check](line).items()}
    assert check.check_settings({**settings, "trl_version": "1.16.0"}, complete=False) == []


def test_the_command_takes_a_trainers_flags_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--save-debug-rollout-data", "/d/rollout.pt", "--num-rollout", "10"]
    assert main(["check", *flags, "--trainer", "slime"]) == 1
    assert "no {rollout_id}" in capsys.readouterr().out
    assert main(["check", "--trainer=slime", "--", "--save-debug-rollout-data", "/d/{rollout_id}.pt"]) == 0


def test_a_flag_wins_over_the_file_of_flags_that_it_is_given_with(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("--dump-details /d\n--dynamic-sampling-filter-path a.b\n")
    words = ["check", "--trainer", "slime", "--config", str(tmp_path / "flags")]
    assert main(words) == 1
    assert main([*words, "--rollout-all-samples-process-path", "rolloutdeck.trainers.slime.all_samples"]) == 0


SFT = "SFTTrainer(args=SFTConfig(logging_steps=10, eval_strategy='steps', output_dir='sft'))\n"
GRPO_ONE = "GRPOTrainer(args=GRPOConfig(logging_steps=1, log_completions=True, output_dir='rl'))\n"
GRPO_TEN = "GRPOTrainer(args=GRPOConfig(log_completions=True))\n"


@pytest.mark.parametrize(
    ("script", "status"), [(SFT + GRPO_ONE, 0), (GRPO_ONE + SFT, 0), (SFT + GRPO_TEN, 1), (GRPO_TEN + SFT, 1), (SFT, 0)]
)
def test_a_script_of_two_trainers_is_checked_for_the_one_that_generates(
    script: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    words = ["check", "--trainer", "trl", "--config", str(tmp_path / "train.py")]
    assert main(words) == status
    assert main([*words, "logging_steps=1"]) == 0


def test_a_script_of_trl_is_checked_without_running_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(
        'GRPOTrainer(args=GRPOConfig(output_dir="out", eval_strategy="steps"))\nboom()\n'
    )
    words = ["check", "--trainer", "trl", "--config", str(tmp_path / "train.py")]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "log_completions is not set" in out and "eval_strategy=steps" in out and "RolloutdeckCallback()" in out
    assert main([*words, "callbacks=[RolloutdeckCallback()]"]) == 0


@pytest.mark.parametrize(
    "script",
    [
        "callbacks = [RolloutdeckCallback(keep='out')]\nGRPOTrainer(args=args, callbacks=callbacks)\n",
        "def main():\n    ours = trl.RolloutdeckCallback()\n    GRPOTrainer(args=args, callbacks=[ours])\n",
        "trainer = RLOOTrainer()\nours = RolloutdeckCallback()\ntrainer.add_callback(ours)\n",
    ],
)
def test_a_callback_that_a_script_passes_by_a_variable_counts(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"args = GRPOConfig(output_dir='out')\n{script}")
    assert main(["check", "--trainer", "trl", "--config", str(tmp_path / "train.py")]) == 0


ADVICE = {
    "slime": ("rolloutdeck.trainers.slime.log_rollout", "--runtime-env-json="),
    "trl": ("callbacks=[RolloutdeckCallback()]", "export ROLLOUTDECK_URL="),
    "roll": ("rollout_dump_dir: /shared/rl/PROJECT/", "rolloutdeck watch --tree '/shared/rl/{project}/{run}'"),
    "cure": ("rolloutdeck watch optimization evaluation", "before run.py"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_without_settings_the_recommended_lines_of_each_trainer_are_printed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--trainer", name]) == 0
    out = capsys.readouterr().out
    assert [text for text in ADVICE[name] if text not in out] == []
    inside = name in ("slime", "trl")
    assert ("ROLLOUTDECK_TOKEN_FILE" in out) == inside == ("--scope ingest,read" in out)


def test_rolls_recommended_lines_pass_its_check(tmp_path: Path) -> None:
    lines = ["exp_name: math", *roll_check.recommended_lines(), *roll_check.store_lines()]
    (tmp_path / "run.yaml").write_text("\n".join(lines) + "\n")
    assert main(["check", "--trainer", "roll", "--config", str(tmp_path / "run.yaml")]) == 0
    assert load.read_config_file(tmp_path / "run.yaml")[0]["rollout_dump_dir"] == "/shared/rl/PROJECT/math/rollout"


def test_a_trainer_without_a_check_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--trainer", "nemo_rl"]) == 2
    assert "Available: verl, trl, slime, roll, cure" in capsys.readouterr().err
