"""OpenRLHF: `python -m rolloutdeck.trainers.openrlhf` starts its PPO training and records it live.

Depends on: `rolloutdeck.trainer_api`; the plug-in on `rolloutdeck.trainers.common`.
Invariant: the training is OpenRLHF's own, with the same arguments. No files of it are read.
"""

from __future__ import annotations

from rolloutdeck.trainer_api import TimingMetrics, TrainerFiles, assume_split, map_phases

__all__ = ["FILES"]

TIMING = TimingMetrics(
    "OpenRLHF",
    ("train/timing/step_total",),
    map_phases(
        "train/timing/",
        generation="generation",
        old_log_prob="make_experience",
        update="ppo_train",
        weight_sync="broadcast",
    ),
)

FILES = TrainerFiles(name="openrlhf", kinds=(), timing=TIMING, guess_split=assume_split("train", "no files are read"))
