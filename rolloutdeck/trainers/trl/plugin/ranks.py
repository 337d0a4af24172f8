"""Which process of a TRL training reports: the main one, to the run of its callback."""

from __future__ import annotations

from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.trainers.trl.plugin.callback import RolloutdeckCallback
from rolloutdeck.trainers.trl.plugin.processes import is_main_process


def find_callback(trainer: Any) -> RolloutdeckCallback | None:
    callbacks = trainer.callback_handler.callbacks
    return next((callback for callback in callbacks if isinstance(callback, RolloutdeckCallback)), None)


def find_reporting_run(trainer: Any) -> Run | None:
    """Returns the run that gets the outcome of a step: that of the main process's callback, if it has one."""
    callback = find_callback(trainer)
    return callback.open_trainer_session(trainer).run if callback is not None and is_main_process(trainer) else None
