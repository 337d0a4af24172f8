"""slime: its files (`--dump-details`, `--save-debug-*-data`), settings checks, replay, and its plug-in.

Depends on: `rolloutdeck.trainer_api`; replay on `rolloutdeck.replay` and `rolloutdeck.safe_pickle`.
Invariant: public functions such as `log_rollout` are paths in users' arguments, so their names never change.

A template without `{rollout_id}` gives a name without the step; then the file itself states it.
Source: slime 624b824a: `observability/rollout_data_utils.py` and `observability/train_data_utils.py`.
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

__all__ = [
    "SLIME_HEAD_BYTES", "TRAINER", "all_samples", "find_guidance", "generate_rollout", "guide_rewards", "is_slime_dump",
    "log_eval", "log_rollout", "sample_hook",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "plugin.guidance": ("find_guidance", "guide_rewards"),
    "plugin.record": ("log_rollout", "log_eval", "all_samples", "sample_hook"),
    "plugin.replay": ("generate_rollout",),
})  # fmt: skip

_ROLLOUT = re.compile(r"(?:eval_)?(\d{1,18})\.pt\Z")
_TRAIN = re.compile(r"(\d{1,18})(?:_\d{1,9})?\.pt\Z")
_EVAL = re.compile(r"(?<![a-z])eval_\d", re.IGNORECASE)
_TRAINED = re.compile(rb"[^.]format_version|\x0c(?:\0\0\0)?rollout_data")  # the keys, as a pickle has them
FORGED_ROLLOUT_FUNCTION = "slime.rollout.forge_load.generate_rollout"
SLIME_HEAD_BYTES = 1024  # the first bytes of a file, which identify its kind


def is_slime_dump(start: bytes, *, trained: bool) -> bool:
    """Returns whether a file starts like slime's dumps of rollouts, or of training data if `trained`.

    miles, which is derived from slime, writes the same dumps of rollouts and its own of training data, with the key
    `rollout_data`. torch names an entry of the archive `.format_version`, which is not a key of the dump.
    """
    if not start.startswith(b"PK\x03\x04") or b"rollout_id" not in start[:SLIME_HEAD_BYTES]:
        return False
    return bool(_TRAINED.search(start[:SLIME_HEAD_BYTES])) == trained


KINDS = (
    FileKind(
        "slime-rollout", "samples of a rollout", "*.pt", lambda name, head: is_slime_dump(head.start, trained=False),
        step=lambda path: match_step(_ROLLOUT, path.name),
        split=lambda path: "eval" if _EVAL.search(path.name) else "train", stepless=True, step_kind="rollout_id",
    ),
    FileKind(
        "slime-train", "what a rollout was trained with", "*.pt",
        lambda name, head: is_slime_dump(head.start, trained=True), step=lambda path: match_step(_TRAIN, path.name),
        split=lambda path: "train", stepless=True, step_kind="rollout_id", adds_columns=True,
    ),
)  # fmt: skip

TIMING = TimingMetrics(
    "slime",
    ("perf/step_time",),
    map_phases(
        "perf/",
        generation="rollout_time",
        old_log_prob="log_probs_time",
        reference="ref_log_probs_time",
        update="actor_train_time",
        weight_sync="update_weights_time",
        checkpoint="save_model_time",
    ),
    setup_line="--custom-rollout-log-function-path rolloutdeck.trainers.slime.log_rollout",
)

TRAINER = Trainer(
    name="slime",
    timing=TIMING,
    kinds=KINDS,
    others={
        "global_dataset_state_dict_*.pt": "states of a data source",
        "*.trace_timeline_cache.json": "caches of a trace viewer",
    },
    guess_split=assume_split("train", "only the names of files say it"),
    loads=("slime-rollout",),
    replays_own_prompts=("slime-rollout",),
    instructions="Add these to the arguments of slime's train.py:",
    first_step=0,
    replays_only=True,
    selected_actions={"": ("mask", "regenerate")},
    only_trained=True,
    ways={"debug": {"rollout_function_path": None}, "forge": {"rollout_function_path": FORGED_ROLLOUT_FUNCTION}},
    setting_names=(
        "num_rollout",
        "rollout_batch_size",
        "prompt_data",
        "hf_checkpoint",
        "n_samples_per_prompt",
        "dump_details",
        "save_debug_rollout_data",
        "load_debug_rollout_data",
        "rollout_function_path",
        "advantage_estimator",
        "custom_rollout_log_function_path",
        "actor_num_nodes",
        "eval_interval",
    ),
    check_settings=FunctionReference("rolloutdeck.trainers.slime.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.slime.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.slime.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:recommended_lines"),
    store_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.slime.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.slime.step_files:read_step"),
    environment_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:environment_lines"),
    replay_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:replay_lines"),
)
