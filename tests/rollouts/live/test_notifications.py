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
def down(settings: Any, tmp_path: Path) -> None:
    """No Redis where the settings say."""
    layer = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}
    settings.CHANNEL_LAYERS = {"default": {**layer, "CONFIG": {"hosts": [f"unix://{tmp_path}/none.sock"]}}}


def test_without_redis_a_dump_is_indexed_and_a_change_is_kept(run: Run, down: None) -> None:
    dump = push(run, lines(generation()))
    indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, Sample.objects.count()) == (Dump.State.INDEXED, 1)
    before = Run.objects.get(pk=run.pk).version
    with transaction.atomic():
        notifications.notify_run_changed(run)
    assert Run.objects.get(pk=run.pk).version == before + 1


def test_a_redis_that_does_not_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_ring_that_fails_in_any_other_way_fails_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "send", lambda ring: 1 / 0)
    with transaction.atomic():
        notifications.notify_run_changed(run)
    notifications.notify_topics("runs")


def test_delayed_changes_of_a_run_are_one_at_the_end_of_the_block(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [(ring["split"], ring["step"], ring["version"], "pins" in ring["topics"]) for ring in sent] == [
        ("", None, before + 1, True)
    ]
    with pytest.raises(ValueError, match="stop"), transaction.atomic(), notifications.delay_notifications():
        notifications.notify_run_changed(run)
        raise ValueError("stop")
    assert load_version() == before + 1 and len(sent) == 1
    notifications.notify_run_changed(run)
    assert len(sent) == 2, "what follows is not delayed"


def test_sparse_rings_are_sent_once_at_once_and_once_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def keep(notification: Any) -> None:
        if notification["topics"][0] in ("run:a", "run:b"):  # others wait since an earlier test
            sent.append(notification)

    monkeypatch.setattr(notifications, "send", keep)
    monkeypatch.setattr(notifications, "SPARSE_SECONDS", 0.3)
    sender = notifications.SparseSender()

    def ring(topic: str, step: int | None, version: int) -> None:
        sender.send({"type": "ring", "topics": [topic, "live"], "split": "train", "step": step, "version": version})

    for version in range(40):
        ring("run:a", 7, version)
        ring("run:b", version, version)
    assert [ring["version"] for ring in sent] == [0, 0]
    deadline = time.monotonic() + 5
    while len(sent) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    joined = {ring["topics"][0]: (ring["split"], ring["step"], ring["version"]) for ring in sent[2:]}
    assert joined == {"run:a": ("train", 7, 39), "run:b": ("", None, 39)}, "several steps: the whole run"
    ring("run:a", 7, 40)
    assert len(sent) == 4, "one was sent a moment ago"
