"""Notifications are sent after the commit, and a change is kept if Redis is down."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from rollouts.indexing import indexer
from rollouts.live import notifications
from rollouts.models import Dump, Run, Sample
from tests.rollouts.support.push import generation, lines, push

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis_down(settings: Any, tmp_path: Path) -> None:
    """The settings name a Redis server that does not run."""
    layer = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}
    settings.CHANNEL_LAYERS = {"default": {**layer, "CONFIG": {"hosts": [f"unix://{tmp_path}/none.sock"]}}}


def test_without_redis_a_dump_is_indexed_and_a_change_is_kept(run: Run, redis_down: None) -> None:
    dump = push(run, lines(generation()))
    indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, Sample.objects.count()) == (Dump.State.INDEXED, 1)
    before = Run.objects.get(pk=run.pk).version
    with transaction.atomic():
        notifications.notify_run_changed(run)
    assert Run.objects.get(pk=run.pk).version == before + 1


def test_nothing_is_sent_for_a_while_after_redis_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class Layer:
        async def group_send(self, group: str, notification: Any) -> None:
            sent.append(group)
            await asyncio.sleep(60)

    monkeypatch.setattr(notifications, "get_channel_layer", Layer)
    monkeypatch.setattr(notifications, "MAX_SEND_SECONDS", 0.05)
    monkeypatch.setattr(notifications, "quiet_until", 0.0)
    for _ in range(2):
        notifications.notify_topics("runs")
    assert sent == ["topic.runs"]
    monkeypatch.setattr(notifications, "quiet_until", 0.0)
    notifications.notify_topics("runs")
    assert len(sent) == 2


def test_an_error_in_sending_a_notification_is_not_raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "send", lambda notification: 1 / 0)
    with transaction.atomic():
        notifications.notify_run_changed(run)
    notifications.notify_topics("runs")


def test_delayed_notifications_of_a_run_are_sent_as_one_at_the_end_of_the_block(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(notifications, "send", sent.append)

    def load_version() -> int:
        return Run.objects.get(pk=run.pk).version

    before = load_version()
    with transaction.atomic(), notifications.delay_notifications():
        notifications.notify_run_changed(run, split="train", step=1, topics=("pins",))
        with notifications.delay_notifications():
            notifications.notify_run_changed(run, split="train", step=2)
        assert load_version() == before, "the row of the run is not locked yet"
    assert load_version() == before + 1
    assert [
        (notification["split"], notification["step"], notification["version"], "pins" in notification["topics"])
        for notification in sent
    ] == [("", None, before + 1, True)]
    with pytest.raises(ValueError, match="stop"), transaction.atomic(), notifications.delay_notifications():
        notifications.notify_run_changed(run)
        raise ValueError("stop")
    assert load_version() == before + 1 and len(sent) == 1
    notifications.notify_run_changed(run)
    assert len(sent) == 2, "what follows is not delayed"


def test_sparse_notifications_are_sent_once_immediately_and_once_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def record(notification: Any) -> None:
        if notification["topics"][0] in ("run:a", "run:b"):  # others wait since an earlier test
            sent.append(notification)

    monkeypatch.setattr(notifications, "send", record)
    monkeypatch.setattr(notifications, "SPARSE_SECONDS", 0.3)
    sender = notifications.SparseSender()

    def send_change(topic: str, step: int | None, version: int) -> None:
        sender.send({"type": "ring", "topics": [topic, "live"], "split": "train", "step": step, "version": version})

    for version in range(40):
        send_change("run:a", 7, version)
        send_change("run:b", version, version)
    assert [notification["version"] for notification in sent] == [0, 0]
    deadline = time.monotonic() + 5
    while len(sent) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    combined = {
        notification["topics"][0]: (notification["split"], notification["step"], notification["version"])
        for notification in sent[2:]
    }
    assert combined == {"run:a": ("train", 7, 39), "run:b": ("", None, 39)}, "several steps: the whole run"
    send_change("run:a", 7, 40)
    assert len(sent) == 4, "one was sent a moment ago"
