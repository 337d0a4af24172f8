"""ROLL: its files, settings checks and replay by `pull`, and `track()`, which records its metrics.

Depends on: `rolloutdeck.trainer_api`; replay on `rolloutdeck.replay` and `rolloutdeck.safe_pickle`.
Invariant: the tracker never raises into the training.

Source: ROLL 8eb27cc2, `pipeline/{rlvr,agentic}/utils.py`, `distributed/scheduler/rollout_mock_mixin.py`.
"""

from __future__ import annotations

import re

from rolloutdeck.lazy import lazy_names
from rolloutdeck.trainer_api import (
    FileKind,
    FunctionReference,
    TimingMetrics,
    Trainer,
    assume_split,
    map_phases,
    match_step,
)

__all__ = ["TRAINER", "track"]

__getattr__ = lazy_names(__name__, {"tracker": ("track",)})

_ROWS = re.compile(r"rollout_dump_data\.step_(\d{1,18})\.jsonl\Z")
_MOCK = re.compile(r"step_(\d{1,18})\.pkl\Z")
_COLUMNS = re.compile(rb'\s*\{\s*"[^"\\]{1,80}"\s*:\s*\[')
_CLASS = b"roll.distributed.scheduler.protocol"


KINDS = (
    FileKind(
        "roll-jsonl", "samples of a step", "rollout_dump_data.step_*.jsonl",
        lambda name, head: bool(_COLUMNS.match(head.start)), step=lambda path: match_step(_ROWS, path.name),
    ),
    FileKind(
        "roll-mock", "a batch to load again", "step_*.pkl",
        lambda name, head: head.start.startswith(b"\x80") and _CLASS in head.start,
        step=lambda path: match_step(_MOCK, path.name), adds_columns=True,
    ),
)  # fmt: skip

TIMING = TimingMetrics(
    "ROLL",
    ("time/step_total",),
    map_phases(
        "time/",
        generation="step_generate step_rollout",
        reward="reward_postprocess",
        old_log_prob="old_log_probs step_old_log_probs_values",
        reference="ref_log_probs_values cal_ref_log_probs step_ref_log_probs_values_reward",
        advantage="compute_advantage step_adv",
        update="step_train",
        weight_sync="step_model_update step_stop_server",
        evaluation="val_step val",
    ),
    late_total="time/step_generate",  # of RLVR
    setup_line="track_with: rolloutdeck",
)

TRAINER = Trainer(
    name="roll",
    timing=TIMING,
    kinds=KINDS,
    others={"worker_state_pipeline.json": "states of a pipeline's checkpoints"},
    # A validation of RLVR is never dumped; that of agents has the file name of the training step.
    guess_split=assume_split("train", "ROLL writes what it trains on under this name"),
    loads=("roll-mock",),
    replays_own_prompts=("roll-mock",),
    instructions="Add these to ROLL's YAML, with folders that the machine running `rolloutdeck watch` sees:",
    first_step=0,
    replays_only=True,
    selected_actions={"": ("mask",)},  # it generates nothing
    watch_tree="/shared/rl/{project}/{run}",
    setting_names=(
        "exp_name",
        "max_steps",
        "rollout_batch_size",
        "rollout_dump_dir",
        "actor_train.",
        "rollout_mock.",
        "track_with",
        "sft_train.",
        "student.",
        "chosen_key",
    ),
    check_settings=FunctionReference("rolloutdeck.trainers.roll.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.roll.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.roll.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.roll.settings_check:recommended_lines"),
    store_lines=FunctionReference("rolloutdeck.trainers.roll.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.roll.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.roll.step_files:read_step"),
)
