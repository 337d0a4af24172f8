"""The doorbell's wire: `WS /ws/`. A page says which topics it shows; a ring says that it should ask its URL again.

Client: `{"topics": ["run:<uid>", "runs", "live", "pins", "findings"]}`, again whenever they change. Server: `{"topics",
"split", "step", "version", "listeners"}`; `split step version` only for a run that the page shows. `listeners` is how
many pages of this process heard the same ring, so that they do not all ask at once. The first ring comes right after
the topics, so that a page that slept catches up.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.urls import path

from rollouts.live import ChangeNotification, get_channel_group
from rollouts.models import Run

OPEN_TOPICS = frozenset({"runs", "live", "pins", "findings"})
MAX_TOPICS = 50
CLOSE_NOT_SIGNED_IN = 4401
CLOSE_BAD_MESSAGE = 4400

listener_counts: Counter[str] = Counter()  # topic -> open pages of this process


@database_sync_to_async
def filter_visible_topics(user: Any, topics: list[str]) -> set[str]:
    """Those that the person may hear: the open ones, and runs of their projects."""
    uids = [topic.removeprefix("run:") for topic in topics if topic.startswith("run:")]
    runs = Run.objects.visible_to(user).filter(uid__in=uids).values_list("uid", flat=True)
    return {f"run:{uid}" for uid in runs} | (OPEN_TOPICS & set(topics))


class ChangeNotificationConsumer(AsyncJsonWebsocketConsumer):
    topics: set[str] = set()

    async def connect(self) -> None:
        await self.accept()
        user = self.scope["user"]
        if user is None or not user.is_authenticated:
            await self.close(CLOSE_NOT_SIGNED_IN)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """A frame that is no JSON closes the socket, as one that asks for nonsense does."""
        try:
            await super().receive(text_data, bytes_data, **kwargs)
        except ValueError:
            await self.close(CLOSE_BAD_MESSAGE)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        wanted = content.get("topics") if isinstance(content, dict) else None
        if not isinstance(wanted, list) or not all(isinstance(topic, str) and "\0" not in topic for topic in wanted):
            await self.close(CLOSE_BAD_MESSAGE)
            return
        await self.listen(await filter_visible_topics(self.scope["user"], wanted[:MAX_TOPICS]))
        await self.send_json({"topics": sorted(self.topics)})

    async def listen(self, topics: set[str]) -> None:
        listener_counts.update(topics - self.topics)
        for topic in self.topics - topics:
            listener_counts[topic] -= 1
            if not listener_counts[topic]:
                del listener_counts[topic]
        for topic in self.topics - topics:
            await self.channel_layer.group_discard(get_channel_group(topic), self.channel_name)
        for topic in topics - self.topics:
            await self.channel_layer.group_add(get_channel_group(topic), self.channel_name)
        self.topics = topics

    async def disconnect(self, code: int) -> None:
        await self.listen(set())

    async def ring(self, event: ChangeNotification) -> None:
        """Only what this page asked for: a ring names its run, which not everybody may know of."""
        heard = [topic for topic in event["topics"] if topic in self.topics]
        if not heard:
            return
        said: dict[str, Any] = {"topics": heard, "listeners": max(listener_counts[topic] for topic in heard)}
        if any(topic.startswith("run:") for topic in heard):
            said |= {"split": event["split"], "step": event["step"], "version": event["version"]}
        await self.send_json(said)


websocket_urlpatterns = [path("ws/", cast(Any, ChangeNotificationConsumer.as_asgi()))]
