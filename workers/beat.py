"""The scheduler, which sends the sweep. Each worker has one, and one of them sends.

It has no file, so that a kill can't leave a damaged schedule. Celery does not restart its process when that ends, which
`BeatRestart` does.
"""

import logging
from typing import Any, Final

import redis
from celery import bootsteps
from celery.beat import Scheduler
from celery.worker.components import Beat, Timer

from rollouts.lib import get_current_process_id, has_process_ended
from workers.liveness import connect_redis

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5
LEASE_KEY: Final = "rolloutdeck:scheduler"
LEASE_SECONDS: Final = 30  # then another scheduler sends, unless the process is known to have ended


class SharedScheduler(Scheduler):
    """Sends nothing while the scheduler of another worker does. Redis stores which one."""

    def tick(self, *args: Any, **options: Any) -> float:
        """Returns the seconds until the next call."""
        if not take_lease():
            return CHECK_SECONDS
        self.correct_times()
        return min(float(super().tick(*args, **options)), CHECK_SECONDS)

    def correct_times(self) -> None:
        """Takes a last run ahead of the clock for one of now: the clock was ahead at the start and has been corrected.
        Otherwise the next sweep would come when the wrong time is reached, hours later."""
        entries = self.schedule.values()
        ahead = [entry for entry in entries if entry.last_run_at and entry.last_run_at > entry.default_now()]
        for entry in ahead:
            entry.last_run_at = entry.default_now()
        if ahead:
            self._heap = None  # `tick` builds it again, from the corrected times


def take_lease() -> bool:
    """Returns whether this process sends. Without Redis, it tries: the messages go over Redis too."""
    own = get_current_process_id()
    try:
        connection = connect_redis()
        if connection.set(LEASE_KEY, own, ex=LEASE_SECONDS, nx=True):
            return True
        holder = connection.get(LEASE_KEY)
        name = holder.decode() if isinstance(holder, bytes) else ""
        if name != own and not has_process_ended(name):
            return False
        connection.set(LEASE_KEY, own, ex=LEASE_SECONDS)
    except redis.RedisError:
        return True
    return True


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
