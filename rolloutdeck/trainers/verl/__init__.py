"""verl: its files, settings checks and replay by `pull`, and its plug-in.

Depends on: `rolloutdeck.trainer_api`; replay on `rolloutdeck.replay` and `rolloutdeck.safe_pickle`.
Invariant: the plug-in is installed only where verl is imported.

Source: verl 0.9.1: `trainer/ppo/ray_trainer.py` and `trainer/ppo/v1/trainer_base.py` write `{step}.jsonl`,
`utils/tracking.py` (FileLogger) the metrics, `utils/skip/` the rollout-skip dumps; older layouts from v0.6.1 on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    FunctionReference,
    TimingMetrics,
    Trainer,
    map_phases,
    match_step,
    parse_row_step,
)

__all__ = ["TRAINER"]

_STEP_FILE = re.compile(r"(\d{1,18})\.jsonl\Z")


def _is_metrics(row: Mapping[str, Any]) -> bool:
    return set(row) == {"step", "data"} and isinstance(row["data"], dict)


def _is_samples_file(name: str, head: FileHead) -> bool:
    """Returns whether the file is a `{step}.jsonl` of generations.

    A metrics file may have such a name too (an experiment named 7).
    """
    return bool(_STEP_FILE.match(name)) and head.has_key("input") and not any(map(_is_metrics, head.rows))


def _is_metrics_file(name: str, head: FileHead) -> bool:
    return _is_metrics(head.rows[0]) if head.rows else False


KINDS = (
    FileKind(
        "verl-metrics", "metrics", "*.jsonl", _is_metrics_file, grows=True, line_step=parse_row_step, content="metrics"
    ),
    FileKind(
        "verl-jsonl", "samples of a step", "*.jsonl", _is_samples_file,
        step=lambda path: match_step(_STEP_FILE, path.name),
    ),
)  # fmt: skip


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Guesses the split: validation runs at step 0 and then at intervals; rollouts are written at every step from 1 on.

    Every validation row since v0.5 has the key `reward`, but a reward function may add one to rollouts too.
    """
    if 0 in steps:
        return "eval", "it has a file of step 0, which only validation writes"
    sorted_steps = sorted(set(steps))
    has_gaps = any(later - earlier > 1 for earlier, later in pairwise(sorted_steps))
    if has_gaps and any(head.has_key("reward") for head in heads):
        return "eval", "its rows have the key reward and its steps have gaps"
    return "train", "it has no file of step 0"


TIMING = TimingMetrics(
    "verl",
    ("timing_s/step", "perf/time_per_step"),
    map_phases(
        "timing_s/",
        generation="gen generate_async",
        reward="reward",
        old_log_prob="old_log_prob",
        reference="ref",
        advantage="adv values",
        update="update_critic update_actor",
        weight_sync="update_weights sync_rollout_weights param_sync timing_s/param_sync switch_to_rollout "
        "switch_to_trainer",
        evaluation="testing",
        checkpoint="save_checkpoint",
        waiting="wait_for_enough_samples switch_wait",
    ),
    frozenset(("evaluation",)),
    frozenset(("policy_version",)),
    # Of fully async, and of one step off.
    frozenset(("timing_s/timing_s/param_sync", "timing_s/sync_rollout_weights")),
    setup_line='\'trainer.logger=["console","rolloutdeck"]\'',
)

TRAINER = Trainer(
    name="verl",
    timing=TIMING,
    kinds=KINDS,
    others={
        "train_step__gen_step.txt": "step tables of rollout-skip dumps",
        "events.out.tfevents.*": "TensorBoard event files",
        "mlflow_val_step*.json": "validation tables of a logger, an excerpt of validation_data_dir",
        "val_step*.json": "validation tables of a logger, an excerpt of validation_data_dir",
    },
    guess_split=guess_split,
    loads=("gen_batch", "tq_batch", "single_file"),
    replays_own_prompts=("tq_batch",),
    # Fully async has files for each prompt.
    selected_actions={"": ("drop", "mask", "regenerate"), "async_rollout": ("regenerate",)},
    instructions=(
        "Add these to the trainer's command line, with folders that the machine running `rolloutdeck watch` sees:"
    ),
    watch_tree="/shared/rl/{project}/{run}/{split}",
    setting_names=("trainer.", "actor_rollout_ref.", "algorithm.", "skip.", "async_training.", "rollout."),
    check_settings=FunctionReference("rolloutdeck.trainers.verl.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.verl.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.verl.facts:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.verl.settings_check:recommended_lines"),
    store_lines=FunctionReference("rolloutdeck.trainers.verl.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.verl.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.verl.step_files:read_step"),
    environment_lines=FunctionReference("rolloutdeck.trainers.verl.settings_check:environment_lines"),
    replay_lines=FunctionReference("rolloutdeck.trainers.verl.settings_check:replay_lines"),
)


if "verl" in sys.modules:  # verl imports this package as its plug-in; the command line does not import verl
    from rolloutdeck.trainers.verl import plugin as verl_plugin

    verl_plugin.install_plugin()
