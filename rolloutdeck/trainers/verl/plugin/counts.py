"""Counts the generations of a step and how many of them were trained on, with the reasons for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainers.verl.plugin.session import VerlSession


def log_counts(session: VerlSession, trainer: Any, generated: int, excluded: Mapping[str, int]) -> None:
    """Logs the counts at the trained step, and the seconds for which the training waited for Rolloutdeck.

    In fully async too, where verl's own metrics have another axis: the counts are of the batch, and batches trained at
    the same step are added up.
    """
    step = int(trainer.global_steps)
    last_step, last_generated, last_excluded = session.last_counts
    if last_step == step:
        generated, excluded = generated + last_generated, Counter(excluded) + Counter(last_excluded)
    session.last_counts = (step, generated, excluded)
    excluded_counts = {f"rolloutdeck/left_out/{reason}": count for reason, count in excluded.items() if count}
    seconds, session.blocked_seconds = session.blocked_seconds, 0.0
    session.run.log(
        {
            "rolloutdeck/generated": generated,
            "rolloutdeck/trained": generated - sum(excluded.values()),
            **excluded_counts,
            "timing_s/rolloutdeck": seconds,
        },
        step=step,
    )
