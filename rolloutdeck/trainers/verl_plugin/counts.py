"""How many generations a step made and how many of them it trained on, with the reason for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainers.verl_plugin.session import Session


def log(session: Session, trainer: Any, generated: int, left_out: Mapping[str, int]) -> None:
    """Logs the counts beside the step's metrics, and the seconds for which the training waited for us."""
    asynchronous = session.is_fully_async
    step = int(trainer.current_param_version if asynchronous else trainer.global_steps)
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
        step_kind="policy_version" if asynchronous else "global_step",
    )
