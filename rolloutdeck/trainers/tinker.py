"""Files of tinker-cookbook: rollouts of an iteration and their texts, and trajectories of evaluations.

`{log_path}/iteration_{N:06d}/{train|eval_…}_{rollout_summaries.jsonl|logtree.json}` (tinker_cookbook/stores/
training_store.py) and `{save_dir}/{benchmark}/trajectories.jsonl` (tinker_cookbook/stores/eval_store.py),
thinking-machines-lab/tinker-cookbook 9dfcc3a2. Its `metrics.jsonl` is one of `metric_files`.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    TimingMetrics,
    TrainerFiles,
    assume_split,
    find_step_in_parents,
    map_phases,
    match_step,
)
from rolloutdeck.trainers.tables import parse_step_name

_ITERATION = re.compile(r"iteration_(\d{1,18})\Z")
_MAX_PARENTS = 3  # folders above the trajectories: benchmark, run, runs


def _parse_iteration(path: PurePath) -> int | None:
    return match_step(_ITERATION, path.parent.name)


def _parse_split(path: PurePath) -> str:
    return "eval" if path.name.startswith("eval") else "train"


def _parse_eval_set(path: PurePath) -> str:
    """Returns the name of the eval set, `eval_test`: sets of one iteration have equal rows without text."""
    name = re.sub(r"_(rollout_summaries|logtree)\Z", "", path.stem)
    return name if name.startswith("eval") else ""


def _parse_checkpoint(path: PurePath) -> int | None:
    return find_step_in_parents(path, parse_step_name, _MAX_PARENTS)


def _is_trajectories(name: str, head: FileHead) -> bool:
    return head.first_key == "idx" and b'"benchmark"' in head.start


TIMING = TimingMetrics(
    "tinker-cookbook",
    ("time/total",),
    map_phases(
        "time/",
        generation="sampling sample",
        update="train train_step",
        evaluation="run_evals",
        checkpoint="save_checkpoint",
    ),
)

FILES = TrainerFiles(
    name="tinker",
    timing=TIMING,
    kinds=(
        FileKind(
            "tinker-rollouts", "rollouts of an iteration", "*_rollout_summaries.jsonl",
            lambda name, head: head.has_key("traj_idx") or head.first_key == "schema_version",
            step=_parse_iteration, split=_parse_split, stepless=True, producer=_parse_eval_set,
        ),
        FileKind(
            "tinker-logtree", "texts of an iteration", "*_logtree.json", lambda name, head: b'"lt-root"' in head.start,
            step=_parse_iteration, split=_parse_split, adds_columns=True, producer=_parse_eval_set,
        ),
        FileKind(
            "tinker-eval", "trajectories of an evaluation", "trajectories.jsonl", _is_trajectories, grows=True,
            step=_parse_checkpoint, split=lambda path: "eval", stepless=True, producer=lambda path: path.parent.name,
        ),
    ),
    guess_split=assume_split("train", "only the names of files say it"),
    others={
        "timing_spans.jsonl": "timings of a trainer",
        "checkpoints.jsonl": "lists of checkpoints",
    },
)  # fmt: skip
