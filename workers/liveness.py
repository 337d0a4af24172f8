"""Whether a worker runs: each reports to Redis every ten seconds, also while its tasks take long."""

import logging
import threading

import redis
from django.conf import settings

log = logging.getLogger(__name__)

KEY = "rolloutdeck:worker"
REPORT_SECONDS = 10
MAX_SILENCE_SECONDS = 30


def connect_redis() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def report_worker() -> None:
    """Raises redis.RedisError."""
    connect_redis().set(KEY, "1", ex=MAX_SILENCE_SECONDS)


def has_live_worker() -> bool:
    """Whether a worker has reported within 30 s. Raises redis.RedisError."""
    return bool(connect_redis().exists(KEY))


def start_reports() -> None:
    """Starts the thread that reports, in the main process of a worker."""
    threading.Thread(target=_report_forever, name="liveness", daemon=True).start()


def _report_forever() -> None:
    pause = threading.Event()
    while True:
        try:
            report_worker()
        except redis.RedisError as error:
            log.warning("Redis does not answer: %s", error)
        pause.wait(REPORT_SECONDS)
