"""Change notifications: inform open pages that something changed, but not what. Pages request their URL again.

A notification is `{topics, split, step, version}`. It may be lost or duplicated without harm. Labels change about once
a second and person, so those about them are sparse: at most one in `SPARSE_SECONDS` per topic and process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypedDict

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from django.db.models import F
from redis.exceptions import RedisError

from rollouts.models import Run

log = logging.getLogger(__name__)

SPARSE_SECONDS = 3.0
MAX_SEND_SECONDS = 2.0  # a request waits for this at most
PAUSE_SECONDS = 5.0  # nothing is sent for this long after that
quiet_until = 0.0


class ChangeNotification(TypedDict):
    type: str
    topics: list[str]
    split: str
    step: int | None
    version: int


@dataclass(frozen=True, slots=True)
class RunChange:
    run: Run
    split: str
    step: int | None
    topics: tuple[str, ...]
    sparse: bool

    def join(self, other: RunChange) -> RunChange:
        """Returns both changes as one, about the whole run if their steps differ."""
        is_same = (self.split, self.step) == (other.split, other.step)
        split, step = (self.split, self.step) if is_same else ("", None)
        topics = tuple(dict.fromkeys([*self.topics, *other.topics]))
        return RunChange(self.run, split, step, topics, self.sparse and other.sparse)


delayed_changes: ContextVar[dict[int, RunChange] | None] = ContextVar("delayed_changes", default=None)


def get_channel_group(topic: str) -> str:
    """Returns the channel-layer group of a topic. Group names may not contain colons."""
    return "topic." + topic.replace(":", ".")


def notify_run_changed(
    run: Run, *, split: str = "", step: int | None = None, topics: tuple[str, ...] = (), sparse: bool = False
) -> None:
    """Increments the run's version inside the caller's transaction and sends a notification after the commit. `sparse`:
    see `notify_topics`.

    The UPDATE of the version locks the run's row, so on PostgreSQL a lower version never commits after a higher one was
    read. Other transactions that change the run wait for it: call this last, or inside of `delay_notifications`.
    """
    change = RunChange(run, split, step, topics, sparse)
    delayed = delayed_changes.get()
    if delayed is None:
        publish_change(change)
    else:
        delayed[run.pk] = delayed[run.pk].join(change) if run.pk in delayed else change


@contextmanager
def delay_notifications() -> Iterator[None]:
    """Publishes the changes of the block at its end, one per run. The block is inside of the transaction."""
    if delayed_changes.get() is not None:
        yield
        return
    changes: dict[int, RunChange] = {}
    token = delayed_changes.set(changes)
    try:
        yield
    finally:
        delayed_changes.reset(token)
    for _run_id, change in sorted(changes.items()):  # in the same order everywhere, so that no two deadlock
        publish_change(change)


def publish_change(change: RunChange) -> None:
    Run.objects.filter(pk=change.run.pk).update(version=F("version") + 1)
    version = Run.objects.values_list("version", flat=True).get(pk=change.run.pk)
    topics = (f"run:{change.run.uid}", "runs", "live", *change.topics)
    notify_topics(*topics, split=change.split, step=change.step, version=version, sparse=change.sparse)


def notify_topics(
    *topics: str, split: str = "", step: int | None = None, version: int = 0, sparse: bool = False
) -> None:
    """Sends a notification after the caller's transaction has committed. `sparse`: if one about the first topic was
    sent a moment ago, it is joined with those that follow, and they are sent together a little later."""
    notification = ChangeNotification(type="ring", topics=list(topics), split=split, step=step, version=version)
    send_it = sparse_sender.send if sparse else send
    transaction.on_commit(lambda: send_it(notification), robust=True)  # not a partial: Django logs the function's name


class SparseSender:
    """The first notification about a topic is sent at once, so that a single change is seen at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_at: dict[str, float] = {}
        self._waiting: dict[str, ChangeNotification] = {}

    def send(self, notification: ChangeNotification) -> None:
        topic, now = notification["topics"][0], time.monotonic()
        with self._lock:
            if waiting := self._waiting.get(topic):
                self._waiting[topic] = join_notifications(waiting, notification)
                return
            self._sent_at = {key: at for key, at in self._sent_at.items() if now - at < SPARSE_SECONDS}
            wait = SPARSE_SECONDS - (now - self._sent_at[topic]) if topic in self._sent_at else 0.0
            if wait > 0:
                self._waiting[topic] = notification
                timer = threading.Timer(wait, self._send_waiting, [topic])
                timer.daemon = True
                timer.start()
                return
            self._sent_at[topic] = now
        send(notification)

    def _send_waiting(self, topic: str) -> None:
        with self._lock:
            notification = self._waiting.pop(topic)
            self._sent_at[topic] = time.monotonic()
        send(notification)


def join_notifications(first: ChangeNotification, second: ChangeNotification) -> ChangeNotification:
    """About the whole run if they are about several steps."""
    topics = list(dict.fromkeys([*first["topics"], *second["topics"]]))
    is_same = (first["split"], first["step"]) == (second["split"], second["step"])
    split, step = (second["split"], second["step"]) if is_same else ("", None)
    version = max(first["version"], second["version"])
    return ChangeNotification(type="ring", topics=topics, split=split, step=step, version=version)


sparse_sender = SparseSender()


def send(notification: ChangeNotification) -> None:
    """Puts the notification on the channel layer. If Redis fails, only the notification is lost. If Redis does not
    answer, those of the next `PAUSE_SECONDS` are lost too: the caller would wait for each of them."""
    global quiet_until
    layer: Any = get_channel_layer()
    if layer is None or time.monotonic() < quiet_until:
        return
    try:
        async_to_sync(send_all)(layer, notification)
    except (RedisError, OSError) as error:
        if isinstance(error, TimeoutError):
            quiet_until = time.monotonic() + PAUSE_SECONDS
        log.warning("Redis does not answer (%s); open pages do not update until it does.", str(error) or "timeout")


async def send_all(layer: Any, notification: ChangeNotification) -> None:
    """Sends to all topics over one connection. Separate calls from synchronous code would open one each. The layer
    sends one after the other, so the time includes those that wait before this one. Raises TimeoutError."""
    async with asyncio.timeout(MAX_SEND_SECONDS):
        for topic in notification["topics"]:
            await layer.group_send(get_channel_group(topic), notification)
