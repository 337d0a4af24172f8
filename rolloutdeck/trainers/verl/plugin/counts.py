"""How many generations a step made and how many of them it trained on, with the reason for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainers.verl.plugin.session import VerlSession


def log_counts(session: VerlSession, trainer: Any, generated: int, left_out: Mapping[str, int]) -> None:
    """Logs the counts at the step that was trained, and the seconds for which the training waited for us.

    In fully async too, where verl's own metrics are on another axis: the counts are of the batch, and batches that are
    trained at one step add up.
    """
    step = int(trainer.global_steps)
    before, made, gone = session.counted
    if before == step:
        generated, left_out = generated + made, Counter(left_out) + Counter(gone)
    session.counted = (step, generated, left_out)
    found = {f"rolloutdeck/left_out/{reason}": count for reason, count in left_out.items() if count}
    seconds, session.seconds = session.seconds, 0.0
    session.run.log(
        {
            "rolloutdeck/generated": generated,
            "rolloutdeck/trained": generated - sum(left_out.values()),
            **found,
            "timing_s/rolloutdeck": seconds,
        },
        step=step,
    )
