"""Times that the database compares."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone


def has_passed(field: str, furthest: timedelta) -> Q:
    """Returns the condition that the time in `field` is over.

    It is also over if it is more than `furthest` ahead, which nobody sets: the clock was ahead when the time was
    written, and has been corrected since. Without this, work would wait until the wrong time comes.
    """
    now = timezone.now()
    return Q(**{f"{field}__lte": now}) | Q(**{f"{field}__gt": now + furthest})
