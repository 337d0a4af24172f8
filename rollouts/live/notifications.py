"""The doorbell: tells open pages that something changed, never what. Pages ask their ordinary URL again.

A ring is `{topics, split, step, version}`. It may be lost or doubled without harm.
"""

from __future__ import annotations

import logging
from typing import Any, TypedDict

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from django.db.models import F
from redis.exceptions import RedisError

from rollouts.models import Run

log = logging.getLogger(__name__)


class ChangeNotification(TypedDict):
    type: str
    topics: list[str]
    split: str
    step: int | None
    version: int


def get_channel_group(topic: str) -> str:
    """The channel-layer group of a topic; group names may not hold colons."""
    return "topic." + topic.replace(":", ".")


def notify_run_changed(run: Run, *, split: str = "", step: int | None = None, topics: tuple[str, ...] = ()) -> None:
    """Raises the run's version inside the caller's transaction and rings once it has committed.

    The version's UPDATE takes the run's row lock, so on PostgreSQL no lower number commits after a higher one was seen.
    """
    Run.objects.filter(pk=run.pk).update(version=F("version") + 1)
    version = Run.objects.values_list("version", flat=True).get(pk=run.pk)
    every = [f"run:{run.uid}", "runs", "live", *topics]
    ring: ChangeNotification = {"type": "ring", "topics": every, "split": split, "step": step, "version": version}
    transaction.on_commit(lambda: send(ring), robust=True)  # a partial has no name to tell of, and Django asks for it


def notify_topics(*topics: str) -> None:
    """Rings once the caller's transaction has committed, for what belongs to no one run."""
    ring: ChangeNotification = {"type": "ring", "topics": list(topics), "split": "", "step": None, "version": 0}
    transaction.on_commit(lambda: send(ring), robust=True)


def send(ring: ChangeNotification) -> None:
    """Puts the ring on the channel layer. A dead Redis costs the ring, nothing else."""
    layer: Any = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(send_all)(layer, ring)
    except (RedisError, OSError) as error:
        log.warning("Redis does not answer (%s); open pages hear nothing until it does.", error)


async def send_all(layer: Any, ring: ChangeNotification) -> None:
    """All topics over one connection; each call from synchronous code would open its own."""
    for topic in ring["topics"]:
        await layer.group_send(get_channel_group(topic), ring)
