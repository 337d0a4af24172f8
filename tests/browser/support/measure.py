"""A visit of a person with a browser of their own, and all faults that the browser reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Response, expect

from tests.support.server import Product

expect.set_options(timeout=30_000)


@dataclass
class Site:
    """The product and its public URL; `stripping_url` is that of a proxy that removes the prefix."""

    product: Product
    url: str
    stripping_url: str = ""
    admin_state: dict[str, object] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return urlsplit(self.url)._replace(path="").geturl()


class Visit:
    """`faults` must stay empty: failed requests, requests to other hosts, dialogs, errors in the console."""

    def __init__(self, site: Site, context: BrowserContext) -> None:
        self.site, self.context = site, context
        self.faults: list[str] = []
        context.on("request", self.record_request)
        context.on("response", self.record_response)
        context.on("console", self.record_message)
        context.on("dialog", self.record_dialog)
        context.on("weberror", lambda error: self.faults.append(f"error {error.error}"))
        self.page = context.new_page()

    def record_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.site.origin}/", f"{self.site.stripping_url}/", "data:")):
            self.faults.append(f"asked {request.url}")

    def record_response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status} {response.url}")

    def record_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type} {message.text}")

    def record_dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def go(self, path: str) -> Page:
        self.page.goto(self.site.url + path)
        return self.page

    def clear_faults(self) -> None:
        """For errors that a test causes itself, for example by stopping the server."""
        self.faults.clear()


def list_row_ids(page: Page) -> list[str]:
    """Returns the ids of the table's rows in their order."""
    return [
        str(item)
        for item in page.evaluate("[...document.querySelectorAll('#rows tr[data-id]')].map(r => r.dataset.id)")
    ]


def list_selected_ids(page: Page) -> list[str]:
    return [
        str(item)
        for item in page.evaluate("[...document.querySelectorAll('#rows tr[aria-selected]')].map(r => r.dataset.id)")
    ]


def measure_overflow(page: Page) -> int:
    """Returns by how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))
