"""`/readyz` names the part that keeps the server from accepting data."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from redis import RedisError

from dashboard.api.views import health
from rollouts.storage import create_incoming_path
from workers import liveness

pytestmark = [pytest.mark.django_db, pytest.mark.disk]  # tests/rollouts/storage/ asks with a bucket


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "KEY", f"rolloutdeck:test-worker-{os.getpid()}")  # other tests share Redis
    liveness.connect_redis().delete(liveness.KEY)
    liveness.report_worker("celery@here")
    monkeypatch.setattr(health, "RESERVED_BYTES", 0)
    monkeypatch.setattr(health, "storage_probe", health.StorageProbe())


def read_readiness() -> tuple[int, Any]:
    response = Client().get("/readyz")
    return response.status_code, response.json()


def test_readiness_is_ok_if_all_parts_answer() -> None:
    parts = dict.fromkeys(("status", "database", "storage", "redis", "worker"), "ok")
    assert read_readiness() == (200, parts)


def test_a_missing_worker_is_named() -> None:
    liveness.connect_redis().delete(liveness.KEY)
    status, answer = read_readiness()
    assert status == 503 and answer["worker"] == "none reported within 30 s" and answer["redis"] == "ok"
    assert Client().get("/healthz").status_code == 200


def test_a_load_balancer_asks_only_for_what_pages_need() -> None:
    liveness.connect_redis().delete(liveness.KEY)
    response = Client().get("/readyz?parts=database,storage")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "database": "ok", "storage": "ok"})
    wrong = Client().get("/readyz?parts=database,disk")
    assert wrong.status_code == 400 and "Known: database, storage, redis, worker." in wrong.json()["error"]["message"]


def test_redis_without_an_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RedisError

    monkeypatch.setattr(liveness, "connect_redis", fail)
    status, answer = read_readiness()
    assert status == 503 and answer["redis"] == "no answer"


def test_storage_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(health, "create_incoming_path", fail)
    assert read_readiness()[1]["storage"] == "not writable"


def test_many_requests_write_to_the_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def create() -> Path:
        written.append(create_incoming_path())
        return written[-1]

    monkeypatch.setattr(health, "create_incoming_path", create)
    assert [read_readiness()[1]["storage"] for _ in range(20)] == ["ok"] * 20
    assert len(written) == 1 and not written[0].exists()
    health.storage_probe.checked_at -= health.StorageProbe.SECONDS
    read_readiness()
    assert len(written) == 2
