"""Repeats what the server does not take at the moment: it is restarted, busy, or does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from rolloutdeck.errors import UnavailableError
from rolloutdeck.watch import ActionRequiredError, RetryLaterError

MAX_SERVER_PAUSE = 60.0  # a server may ask for a longer one

T = TypeVar("T")


def call_with_retries(call: Callable[[], T], tries: int, first_pause: float, max_pause: float = MAX_SERVER_PAUSE) -> T:
    """Returns the result of `call`, which is made up to `tries` times, with pauses that double, or that the server asks
    for.

    Raises UnavailableError or RetryLaterError after the last try, and any other error at once.
    """
    for number in range(tries - 1):
        try:
            return call()
        except ActionRequiredError:
            raise
        except (UnavailableError, RetryLaterError) as error:
            pause = min(max_pause, first_pause * 2.0**number)
            time.sleep(max(pause, min(MAX_SERVER_PAUSE, error.pause)))
    return call()
