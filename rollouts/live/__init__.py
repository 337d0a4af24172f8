"""Change notifications to open pages, and the feed of the newest steps.

Depends on: the models and the channel layer.
Invariant: a notification says that something changed, never what. It may be lost or duplicated without harm,
because a page requests its normal URL again.
"""

from rollouts.live.feed import FeedItem, load_feed
from rollouts.live.notifications import (
    ChangeNotification,
    delay_notifications,
    get_channel_group,
    notify_run_changed,
    notify_topics,
)

__all__ = [
    "ChangeNotification",
    "FeedItem",
    "delay_notifications",
    "get_channel_group",
    "load_feed",
    "notify_run_changed",
    "notify_topics",
]
