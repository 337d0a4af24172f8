"""Answers requests of a page in place of the server, or holds them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from playwright.sync_api import Error, Page, Route


def intercept(page: Page, url: str | re.Pattern[str], answer: Callable[[Route], Any], times: int | None = None) -> None:
    """Passes requests to `url` to `answer`, from now on.

    `page.route` returns before Chromium has informed the open document. On a busy machine, in 3 % of tries the server
    still answered a key that was pressed right after it. Messages to a document arrive in order, so this waits for
    another message.
    """
    page.route(url, answer, times=times)
    page.evaluate("0")


class HeldRequests:
    """Requests that get no answer before `release`. `is_concerned` says which of those with this pattern."""

    def __init__(
        self, page: Page, pattern: str | re.Pattern[str], is_concerned: Callable[[Route], bool] = lambda route: True
    ) -> None:
        self.routes: list[Route] = []
        self.released = False
        self.page, self.is_concerned = page, is_concerned
        intercept(page, pattern, self.hold)

    def hold(self, route: Route) -> None:
        if self.released or not self.is_concerned(route):
            route.fallback()
        else:
            self.routes.append(route)

    def wait(self) -> None:
        """Waits until a request is held."""
        deadline = time.monotonic() + 20
        while not self.routes:
            assert time.monotonic() < deadline, "nothing was requested"
            self.page.wait_for_timeout(20)

    def release(self) -> None:
        self.released = True
        for route in self.routes:
            with suppress(Error):  # the page may have given up the request
                route.continue_()
