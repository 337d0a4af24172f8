"""`rolloutdeck check` on values that are not in the file: it says so, and reports no loss that depends on them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rolloutdeck.cli.entry import main

GRPO = "GRPOTrainer(model='m', args=GRPOConfig({}))\n"
VERL = "trainer.rollout_data_dir=/d/r trainer.validation_data_dir=/d/v trainer.logger=[console,file] "
LOGS = "--custom-rollout-log-function-path rolloutdeck.trainers.slime.log_rollout "

# trainer, name of the file, its text, what can't be determined
UNKNOWN = [
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=EVERY"), "logging_steps=EVERY"),
    ("trl", "t.py", GRPO.format("log_completions=args.log, logging_steps=1"), "log_completions=args.log"),
    ("trl", "t.py", GRPO.format("**kw"), "log_completions, logging_steps, eval_strategy"),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=1, **kw"), "eval_strategy"),
    ("trl", "t.py", "kw = load()\n" + GRPO.format("**kw"), "log_completions, logging_steps, eval_strategy"),
    ("trl", "t.py", "kw = {}\nkw['a'] = 1\n" + GRPO.format("**kw"), "log_completions, logging_steps, eval_strategy"),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=1, eval_strategy=when()"), "eval_strategy=when()"),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_strategy=how"), "logging_strategy=how"),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=2, num_iterations=mu"), "num_iterations=mu"),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=0.1"), "logging_steps=0.1"),
    (
        "trl", "t.py", GRPO.format("log_completions=True, logging_steps=1, generation_batch_size=64, "
        "gradient_accumulation_steps=4"), "the number of processes",
    ),
    ("trl", "t.py", f"{GRPO.format('output_dir=1')[:-2]}, callbacks=make())\n", "callbacks=make()"),
    ("trl", "t.py", f"{GRPO.format('output_dir=1')[:-2]}, **more)\n", "GRPOTrainer(**more)"),
    ("trl", "t.yaml", "output_dir: out\nlearning_rate: 0.1\n", "the trainer"),
    ("trl", "flags", "--output_dir out --log_completions --logging_steps $EVERY", "logging_steps=$EVERY"),
    ("trl", "flags", "--log_completions --logging_steps 1 --eval_strategy ${WHEN}", "eval_strategy=${WHEN}"),
    ("verl", "flags", VERL + "trainer.logger=$LOGGER", "trainer.logger=$LOGGER"),
    ("verl", "flags", VERL + "trainer.logger=[console,${LOGGER}]", "trainer.logger="),
    ("verl", "flags", VERL + "trainer.rollout_data_dir=$DIR", "trainer.rollout_data_dir=$DIR"),
    ("verl", "flags", VERL + "trainer.validation_data_dir=null trainer.val_before_train=False trainer.test_freq=$F",
     "trainer.test_freq=$F"),
    ("verl", "flags", VERL + "trainer.validation_data_dir=null trainer.val_before_train=$B", "val_before_train=$B"),
    ("verl", "flags", VERL + "trainer.log_val_generations=$N", "trainer.log_val_generations=$N"),
    ("verl", "flags", VERL + "skip.rollout_tq.enable=$SKIP", "skip.rollout_tq.enable=$SKIP"),
    ("verl", "flags", VERL + "skip.rollout_tq.enable=True skip.rollout_tq.steps=$S", "skip.rollout_tq.steps=$S"),
    ("verl", "flags", VERL + "skip.rollout.enable=True skip.rollout.steps=[1] trainer.use_v1=$V", "trainer.use_v1=$V"),
    ("verl", "c.yaml", "trainer:\n  rollout_data_dir: ${oc.env:DIR}\n  validation_data_dir: /d/v\n"
     "  logger: [console, file]\n", "trainer.rollout_data_dir=${oc.env:DIR}"),
    ("slime", "flags", "--num-rollout 3 --dump-details $DIR", "--dump-details"),
    ("slime", "flags", '--num-rollout 3 "${DEBUG_ARGS[@]}"', "--save-debug-rollout-data"),
    ("slime", "flags", "--num-rollout 3 --save-debug-rollout-data /d/$FILE", "--save-debug-rollout-data"),
    ("slime", "flags", f"{LOGS} --num-rollout 3 --eval-interval $N", "--eval-interval"),
    ("slime", "flags", "--dump-details /d --dynamic-sampling-filter-path $FILTER", "--dynamic-sampling-filter-path"),
    ("slime", "flags", "--dump-details /d --eval-interval 5 --load-debug-rollout-data $LOAD", "--load-debug-rollout"),
    ("roll", "c.yaml", "exp_name: a\nrollout_dump_dir: ${oc.env:DIR}\n", "rollout_dump_dir: ${oc.env:DIR}"),
    ("roll", "c.yaml", "exp_name: a\nrollout_mock: {enable: '${oc.env:M}'}\n", "rollout_mock.enable: ${oc.env:M}"),
    ("roll", "c.yaml", "exp_name: a\nrollout_dump_dir: /d\neval_steps: ${oc.env:E}\nvalidation: {data_args: {a: 1}}\n",
     "eval_steps: ${oc.env:E}"),
    ("roll", "c.yaml", "exp_name: a\nrollout_dump_dir: /d\neval_steps: 0\nenv_manager_cls: ${cls}\n", "${cls}"),
    ("cure", "c.py", "total_steps = 5\neval_interval = read()\n", "eval_interval=read()"),
    ("cure", "c.py", "total_steps = 5\nseparate_training = read()\n", "separate_training=read()"),
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "name", "text", "unknown"), UNKNOWN)
def test_a_value_that_the_file_does_not_contain_can_not_be_determined(
    trainer: str, name: str, text: str, unknown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    status = main(["check", "--trainer", trainer, "--config", str(tmp_path / name)])
    out = capsys.readouterr().out
    undetermined = [line for line in out.splitlines() if line.startswith("NOTE  cannot determine")]
    assert [line for line in undetermined if unknown in line], out
    assert status == 0 and "LOST" not in out
    assert f"Cannot determine {len(undetermined)} setting" in out


# The same settings with known values, and unknown values that decide nothing.
KNOWN = [
    ("trl", "t.py", "EVERY = 1\n" + GRPO.format("log_completions=True, logging_steps=EVERY"), 0),
    ("trl", "t.py", "EVERY = 5\n" + GRPO.format("log_completions=True, logging_steps=EVERY"), 1),
    ("trl", "t.py", "kw = dict(log_completions=True, logging_steps=1)\n" + GRPO.format("**kw"), 0),
    ("trl", "t.py", GRPO.format("**{'log_completions': True, 'logging_steps': 5}"), 1),
    ("trl", "t.py", f"lora = LoraConfig(**kw)\n{GRPO.format('log_completions=True, logging_steps=1')}", 0),
    ("trl", "t.py", "c = GRPOConfig()\nc.log_completions = True\nc.logging_steps = 1\nGRPOTrainer(args=c)\n", 0),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=1, eval_strategy=IntervalStrategy.NO"), 0),
    ("trl", "t.py", GRPO.format("log_completions=True, logging_steps=1, eval_strategy=IntervalStrategy.STEPS"), 1),
    ("trl", "t.py", f"{GRPO.format('**kw')[:-2]}, callbacks=[RolloutdeckCallback()])\n", 0),
    ("verl", "flags", VERL + "trainer.experiment_name=$NAME data.train_batch_size='$((4 * N))' $@", 0),
    ("verl", "flags", VERL + "trainer.rollout_data_dir=$HOME/r", 0),
    ("verl", "flags", VERL + "trainer.validation_data_dir=null trainer.val_before_train=$B trainer.test_freq=5", 1),
    ("slime", "flags", "--num-rollout 3 --save-debug-rollout-data ${DIR}/{rollout_id}.pt ${MODEL_ARGS[@]}", 0),
    ("slime", "flags", "--num-rollout $N --save-debug-rollout-data ${DIR}/all.pt", 1),
    ("roll", "c.yaml", "exp_name: a\ndir: ${oc.env:D}\nrollout_dump_dir: /d/${dir}\ntrack_with: rolloutdeck\n", 0),
]


@pytest.mark.parametrize(("trainer", "name", "text", "status"), KNOWN)
def test_an_unknown_value_that_decides_nothing_is_not_mentioned(
    trainer: str, name: str, text: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["check", "--trainer", trainer, "--config", str(tmp_path / name)]) == status
    assert "annot determine" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trainer", "name", "text"),
    [
        ("verl", "tools.yaml", "tools: []\n"),
        ("trl", "accelerate.yaml", "compute_environment: LOCAL_MACHINE\nnum_machines: 1\n"),
        ("slime", "eval.yaml", "eval: {datasets: []}\n"),
        ("roll", "envs.yaml", "env_manager_cls: a.B\n"),
        ("cure", "sample.py", "k = 16\n"),
    ],
)
def test_a_file_without_any_setting_of_a_run_is_refused(
    trainer: str, name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["check", "--trainer", trainer, "--config", str(tmp_path / name)]) == 2
    assert f"{name} is not the configuration of a run of {trainer}: it has none of" in capsys.readouterr().err


def test_a_part_of_the_settings_may_be_in_a_file_and_the_others_in_words(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("data.train_batch_size=8")
    words = ["check", "--trainer", "verl", "--config", str(tmp_path / "flags")]
    assert main(words) == 2
    assert main([*words, *shlex.split(VERL)]) == 0


def test_the_printed_lines_of_an_undetermined_setting_determine_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flags").write_text(VERL + "skip.rollout_tq.enable=True skip.rollout_tq.steps=$STEPS")
    words = ["check", "--trainer", "verl", "--config", str(tmp_path / "flags")]
    assert main(words) == 0
    fix = [line for line in capsys.readouterr().out.splitlines() if "steps=[1,2,3]" in line]
    assert main([*words, *shlex.split(fix[0])]) == 0
    assert "annot determine" not in capsys.readouterr().out
