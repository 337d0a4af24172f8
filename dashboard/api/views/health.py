"""Health of the server: `/healthz` says that a process lives, `/readyz` whether the server can work."""

import logging
from threading import Lock
from time import monotonic

from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from redis import RedisError

from dashboard.api import build_error_body
from rollouts.storage import RESERVED_BYTES, count_free_bytes, create_incoming_path, probe_bucket
from workers import liveness

log = logging.getLogger(__name__)


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while this process answers. It asks nothing else: a restart does not bring a database back."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 while the server can accept and index data, else 503. The JSON names each part that fails. `parts`: only
    some of them, for example `?parts=database` for pages."""
    checks = {"database": check_database, "storage": check_storage, "redis": check_redis, "worker": check_worker}
    parts = request.GET.get("parts", ",".join(checks)).split(",")
    if unknown := next((part for part in parts if part not in checks), None):
        message = f"{unknown[:40]!r} is no part of the server. Known: {', '.join(checks)}."
        return JsonResponse(build_error_body("bad_input", message), status=400)
    results = {name: checks[name]() for name in parts}
    is_ready = all(result == "ok" for result in results.values())
    return JsonResponse({"status": "ok" if is_ready else "not ready", **results}, status=200 if is_ready else 503)


def check_database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:  # its text has host and user, and this URL is public
        log.exception("The database does not answer.")
        return "no answer, see the server's log"
    return "ok"


class StorageProbe:
    """Asked by anybody, so the disk is written at most once in `SECONDS`."""

    SECONDS = 5.0

    def __init__(self) -> None:
        self.lock, self.checked_at, self.result = Lock(), -self.SECONDS, ""

    def check(self) -> str:
        with self.lock:
            if monotonic() - self.checked_at >= self.SECONDS:
                self.result, self.checked_at = write_probe_file(), monotonic()
            return self.result


storage_probe = StorageProbe()


def check_storage() -> str:
    return storage_probe.check()


def write_probe_file() -> str:
    """Writes a file of one block, since a full disk may still have room for an empty one."""
    try:
        path = create_incoming_path()
        try:
            path.write_bytes(bytes(4096))
        finally:
            path.unlink(missing_ok=True)
        free = count_free_bytes()
    except OSError:
        return "not writable"
    if free < RESERVED_BYTES:
        return "full: uploads are refused"
    return probe_bucket()


def check_redis() -> str:
    try:
        liveness.connect_redis().ping()
    except RedisError:
        return "no answer"
    return "ok"


def check_worker() -> str:
    try:
        return "ok" if liveness.has_live_worker() else "none reported within 30 s"
    except RedisError:
        return "unknown: Redis does not answer"
