"""Which workers run: each reports to Redis every ten seconds, also while its tasks take long.

`KEY` exists while any worker reports. `NAMES_KEY` has the Celery name of each, `celery@<machine>`, with the time of its
last report.
"""

import logging
import socket
import threading
import time
from typing import Any

import redis
from django.conf import settings

log = logging.getLogger(__name__)

KEY = "rolloutdeck:worker"
NAMES_KEY = "rolloutdeck:workers"
REPORT_SECONDS = 10
MAX_SILENCE_SECONDS = 30


def connect_redis() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def report_worker(name: str) -> None:
    """Raises redis.RedisError."""
    now = time.time()
    with connect_redis().pipeline() as commands:
        commands.set(KEY, "1", ex=MAX_SILENCE_SECONDS)
        commands.zadd(NAMES_KEY, {name: now})
        commands.zremrangebyscore(NAMES_KEY, 0, now - MAX_SILENCE_SECONDS)
        commands.execute()


def list_workers_of_other_machines() -> list[str]:
    """The names of the workers of other machines that have reported within 30 s. Raises redis.RedisError."""
    found: Any = connect_redis().zrangebyscore(NAMES_KEY, time.time() - MAX_SILENCE_SECONDS, "+inf")
    names = [name.decode() for name in found]
    return [name for name in names if name.partition("@")[2] != socket.gethostname()]


def has_live_worker() -> bool:
    """Whether a worker has reported within 30 s. Raises redis.RedisError."""
    return bool(connect_redis().exists(KEY))


def start_reports(name: str) -> None:
    """Starts the thread that reports, in the main process of a worker. `name` is Celery's name of the worker."""
    threading.Thread(target=_report_forever, args=(name,), name="liveness", daemon=True).start()


def _report_forever(name: str) -> None:
    pause = threading.Event()
    while True:
        try:
            report_worker(name)
        except redis.RedisError as error:
            log.warning("Redis does not answer: %s", error)
        pause.wait(REPORT_SECONDS)
