"""Sends work to the Celery workers now. If the broker does not answer, the next sweep sends it.

Tasks are sent by name, so the web server does not import what the workers run.
"""

import logging
import time
from typing import Any, Literal

import redis
from celery.utils.nodenames import worker_direct
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from rollouts.models import Dump
from workers import liveness
from workers.celery import app

log = logging.getLogger(__name__)

TaskName = Literal[
    "extend_queues",
    "help_search",
    "index_dump",
    "check_artifact",
    "evaluate_correctness",
    "update_outdated_steps",
    "apply_retention",
    "compact_series",
    "compact_bodies",
    "load_demo",
    "hourly_cleanup",
]

HELP_SECONDS = 10.0  # a worker that is busy for longer does not help
PAUSE_SECONDS = 5.0  # nothing is sent for this long after the broker did not answer
quiet_until = 0.0


def send_now(task: TaskName, *args: Any) -> bool:
    """Sends a task of `workers.tasks`.

    Returns False if the broker does not answer. Then nothing is sent for `PAUSE_SECONDS`.
    """
    global quiet_until
    if time.monotonic() < quiet_until:
        return False
    try:
        app.send_task(f"workers.tasks.{task}", args, ignore_result=True)
    except (BrokerError, OSError) as error:
        quiet_until = time.monotonic() + PAUSE_SECONDS
        log.warning("Redis does not answer (%s). The next sweep sends the tasks. Check that Redis runs.", error)
        return False
    return True


def send_dump(dump_id: int) -> None:
    """Sends a new dump to a worker. If that fails, the dump is due for the next sweep."""
    if not send_now("index_dump", dump_id):
        Dump.objects.filter(pk=dump_id, state=Dump.State.RECEIVED).update(due_at=timezone.now())


def ask_for_help(scan_id: str) -> int:
    """Asks the workers of other machines to help with a search. Returns how many were asked."""
    try:
        workers = liveness.list_workers_of_other_machines()
        for worker in workers:
            queue: Any = worker_direct(worker)
            app.send_task("workers.tasks.help_search", (scan_id,), queue=queue, expires=HELP_SECONDS)
    except (redis.RedisError, BrokerError, OSError) as error:
        log.warning("No worker is asked to help with a search: %s", error)
        return 0
    return len(workers)
