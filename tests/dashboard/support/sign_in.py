"""Uses a sign-in link as its page does."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from django.test import Client


def by_link(client: Client, link: str) -> Any:
    """Presses the button of the page that the link opens."""
    address, _, secret = link.partition("?t=")
    return client.post(address, {"t": unquote(secret)})
