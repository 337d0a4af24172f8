"""Change notifications: inform open pages that something changed, but not what. Pages request their URL again.

A notification is `{topics, split, step, version}`. It may be lost or duplicated without harm.
"""

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
    """Returns the channel-layer group of a topic. Group names may not contain colons."""
    return "topic." + topic.replace(":", ".")


def notify_run_changed(run: Run, *, split: str = "", step: int | None = None, topics: tuple[str, ...] = ()) -> None:
    """Increments the run's version inside the caller's transaction and sends a notification after the commit.

    The UPDATE of the version locks the run's row, so on PostgreSQL a lower version never commits after a higher one was
    read.
    """
    Run.objects.filter(pk=run.pk).update(version=F("version") + 1)
    version = Run.objects.values_list("version", flat=True).get(pk=run.pk)
    notify_topics(f"run:{run.uid}", "runs", "live", *topics, split=split, step=step, version=version)


def notify_topics(*topics: str, split: str = "", step: int | None = None, version: int = 0) -> None:
    """Sends a notification after the caller's transaction has committed."""
    notification = ChangeNotification(type="ring", topics=list(topics), split=split, step=step, version=version)
    transaction.on_commit(lambda: send(notification), robust=True)  # not a partial: Django logs the function's name


def send(notification: ChangeNotification) -> None:
    """Puts the notification on the channel layer. If Redis fails, only the notification is lost."""
    layer: Any = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(send_all)(layer, notification)
    except (RedisError, OSError) as error:
        log.warning("Redis does not answer (%s); open pages do not update until it does.", error)


async def send_all(layer: Any, notification: ChangeNotification) -> None:
    """Sends to all topics over one connection. Separate calls from synchronous code would open one each."""
    for topic in notification["topics"]:
        await layer.group_send(get_channel_group(topic), notification)
