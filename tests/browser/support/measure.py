"""A person with a browser of their own, and everything that went wrong while they looked."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Response, expect

from tests.support.server import Product

expect.set_options(timeout=30_000)


@dataclass
class Site:
    """The product and the address that people type for it; `stripped` is a proxy's that takes the prefix off."""

    product: Product
    url: str
    stripped: str = ""
    signed_in: dict[str, object] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return urlsplit(self.url)._replace(path="").geturl()


class Visit:
    """`faults` must stay empty: failed requests, requests to elsewhere, dialogs, errors in the console."""

    def __init__(self, site: Site, context: BrowserContext) -> None:
        self.site, self.context = site, context
        self.faults: list[str] = []
        context.on("request", self.asked)
        context.on("response", self.answered)
        context.on("console", self.record_message)
        context.on("dialog", self.opened)
        context.on("weberror", lambda error: self.faults.append(f"error {error.error}"))
        self.page = context.new_page()

    def asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.site.origin}/", f"{self.site.stripped}/", "data:")):
            self.faults.append(f"asked {request.url}")

    def answered(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status} {response.url}")

    def record_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type} {message.text}")

    def opened(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def go(self, path: str) -> Page:
        self.page.goto(self.site.url + path)
        return self.page

    def forgive(self) -> None:
        """What a stopped server makes a browser say is no fault."""
        self.faults.clear()


def rows(page: Page) -> list[str]:
    """The ids of the table's rows, as they stand."""
    return [
        str(item)
        for item in page.evaluate("[...document.querySelectorAll('#rows tr[data-id]')].map(r => r.dataset.id)")
    ]


def selected(page: Page) -> list[str]:
    return [
        str(item)
        for item in page.evaluate("[...document.querySelectorAll('#rows tr[aria-selected]')].map(r => r.dataset.id)")
    ]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))
