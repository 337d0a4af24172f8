"""Starts the scheduler again when its process ended: Celery does not, and without it nothing sends the sweep."""

import logging
from typing import Any

from celery import bootsteps
from celery.worker.components import Beat, Timer

log = logging.getLogger(__name__)

CHECK_SECONDS = 5


class BeatRestart(bootsteps.StartStopStep):
    """A part of each worker that has a scheduler (`celery worker -B`)."""

    requires = (Timer, Beat)

    def __init__(self, worker: Any, beat: bool = False, **options: Any) -> None:
        super().__init__(worker, **options)
        self.enabled = beat

    def start(self, worker: Any) -> None:
        worker.timer.call_repeatedly(CHECK_SECONDS, restart_dead_beat, (worker,))


def restart_dead_beat(worker: Any) -> None:
    if worker.beat.is_alive():
        return
    log.error("The scheduler ended with code %s. It starts again.", worker.beat.exitcode)
    step = next(step for step in worker.steps if isinstance(step, Beat))
    step.obj = step.create(worker)
    step.start(worker)
