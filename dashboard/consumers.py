"""Change notifications: `WS /ws/`. A page sends the topics that it shows, and requests its URL again when notified.

Client: `{"topics": ["run:<uid>", "runs", "live", "pins", "findings", "queues"], "hidden": false}`, again after every
change. `{"hidden": true}` alone says that the page is in the background, where it requests nothing.
Server: `{"topics", "split", "step", "version", "listeners"}`; `split step version` only for a run that the page shows.
`listeners` is the number of visible pages of this process that get the same notification, so that they do not all send
a request at once. Their requests reach all processes evenly, as their connections do, so each process only knows its
own pages. The first notification follows the topics at once, so that a page that was asleep is updated. The connection
closes with 4401 if the session has ended: at the next message of the page, or at a notification half a minute later.
"""

import time
from collections import Counter
from random import random
from types import SimpleNamespace
from typing import Any, cast

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer, AsyncWebsocketConsumer
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.urls import path, re_path

from dashboard.sign_in import SessionStore
from dashboard.sign_in.external import SCOPE_KEY, find_session_refusal
from rollouts.live import ChangeNotification, get_channel_group
from rollouts.models import Run
from rollouts.telemetry import SOCKETS

OPEN_TOPICS = frozenset({"runs", "live", "pins", "findings", "queues"})
MAX_TOPICS = 50
SESSION_CHECK_SECONDS = 30.0  # notifications reach an ended session, or a removed member, at most this long
CLOSE_NOT_SIGNED_IN = 4401
CLOSE_BAD_MESSAGE = 4400
CLOSE_UNKNOWN_PATH = 4404

listener_counts: Counter[str] = Counter()  # topic -> visible pages of this process


def is_topic_list(topics: Any) -> bool:
    return isinstance(topics, list) and all(isinstance(topic, str) and "\0" not in topic for topic in topics)


@database_sync_to_async
def filter_visible_topics(user: Any, topics: list[str]) -> set[str]:
    """The open topics, and the runs that the user may see."""
    uids = [topic.removeprefix("run:") for topic in topics if topic.startswith("run:")]
    runs = Run.objects.visible_to(user).filter(uid__in=uids).values_list("uid", flat=True)
    return {f"run:{uid}" for uid in runs} | (OPEN_TOPICS & set(topics))


@database_sync_to_async
def load_signed_in_user(scope: Any) -> Any:
    """The user of the session as it is stored now: it may have ended since the page connected."""
    key = scope["session"].session_key
    request: Any = SimpleNamespace(session=SessionStore(key))
    user = get_user(request)
    named = scope.get(SCOPE_KEY)
    is_over = user.is_authenticated and find_session_refusal(request.session, user, named.name if named else "")
    return AnonymousUser() if is_over else user


class ChangeNotificationConsumer(AsyncJsonWebsocketConsumer):
    topics: set[str] = set()
    is_hidden = False
    checked_at = 0.0  # when the session was last checked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Stops counting the page here: Channels does not call `disconnect` if the connection ends with an error."""
        SOCKETS.inc()
        try:
            await super().__call__(scope, receive, send)
        finally:
            SOCKETS.dec()
            await self.set_topics(set(), self.is_hidden)

    async def connect(self) -> None:
        await self.accept()
        user = self.scope["user"]
        if user is None or not user.is_authenticated:
            await self.close(CLOSE_NOT_SIGNED_IN)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        try:
            await super().receive(text_data, bytes_data, **kwargs)
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            await self.close(CLOSE_BAD_MESSAGE)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        message = content if isinstance(content, dict) else {}
        topics, is_hidden = message.get("topics"), message.get("hidden", self.is_hidden)
        if not isinstance(is_hidden, bool) or not (is_topic_list(topics) or message.keys() == {"hidden"}):
            await self.close(CLOSE_BAD_MESSAGE)
            return
        if topics is None:
            self.count_page(self.topics, is_hidden)
            return
        if not await self.close_if_signed_out():
            return
        self.checked_at -= random() * SESSION_CHECK_SECONDS  # pages that connected together are checked one by one
        await self.set_topics(await filter_visible_topics(self.scope["user"], topics[:MAX_TOPICS]), is_hidden)
        await self.send_json({"topics": sorted(self.topics)})

    async def refresh_topics(self, topics: list[str]) -> list[str]:
        """Unsubscribes the page from what the user may no longer see. Returns the remaining ones of `topics`.

        If the session has ended, closes the connection and returns none.
        """
        if not await self.close_if_signed_out():
            return []
        await self.set_topics(await filter_visible_topics(self.scope["user"], sorted(self.topics)), self.is_hidden)
        return [topic for topic in topics if topic in self.topics]

    async def close_if_signed_out(self) -> bool:
        """Closes the connection if the session has ended. Returns whether it is open."""
        self.checked_at = time.monotonic()
        if (await load_signed_in_user(self.scope)).is_authenticated:
            return True
        await self.close(CLOSE_NOT_SIGNED_IN)
        return False

    def count_page(self, topics: set[str], is_hidden: bool) -> None:
        """Counts the page with these topics instead of those that it had. A hidden page does not count."""
        if not self.is_hidden:
            listener_counts.subtract(self.topics)
        if not is_hidden:
            listener_counts.update(topics)
        for topic in self.topics | topics:
            if not listener_counts[topic]:
                del listener_counts[topic]
        self.topics, self.is_hidden = topics, is_hidden

    async def set_topics(self, topics: set[str], is_hidden: bool) -> None:
        added, removed = topics - self.topics, self.topics - topics
        self.count_page(topics, is_hidden)
        for topic in removed:
            await self.channel_layer.group_discard(get_channel_group(topic), self.channel_name)
        for topic in added:
            await self.channel_layer.group_add(get_channel_group(topic), self.channel_name)

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Channels changes to a thread before each message, to close old database connections. A notification, of which
        there is one for each page, seldom needs one, and `database_sync_to_async` closes those of its own thread."""
        if message["type"] == "ring":
            await self.ring(cast(ChangeNotification, message))
        else:
            await super().dispatch(message)

    async def ring(self, event: ChangeNotification) -> None:
        """Sends only the topics of this page: a notification has the run's uid, which not every user may see."""
        topics = [topic for topic in event["topics"] if topic in self.topics]
        if topics and time.monotonic() - self.checked_at > SESSION_CHECK_SECONDS:
            topics = await self.refresh_topics(topics)
        if not topics:
            return
        message: dict[str, Any] = {"topics": topics, "listeners": max(listener_counts[topic] for topic in topics)}
        if any(topic.startswith("run:") for topic in topics):
            message |= {"split": event["split"], "step": event["step"], "version": event["version"]}
        await self.send_json(message)


class UnknownPathConsumer(AsyncWebsocketConsumer):
    """Any other path below /ws/."""

    async def connect(self) -> None:
        await self.accept()
        await self.close(CLOSE_UNKNOWN_PATH)


websocket_urlpatterns = [
    path("ws/", cast(Any, ChangeNotificationConsumer.as_asgi())),
    re_path(r"", cast(Any, UnknownPathConsumer.as_asgi())),
]
