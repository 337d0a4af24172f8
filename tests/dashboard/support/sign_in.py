"""Uses a sign-in link as the page of the link does."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from django.test import Client


def use_sign_in_link(client: Client, link: str) -> Any:
    """Presses the button of the page that the link opens."""
    address, _, secret = link.partition("?t=")
    return client.post(address, {"t": unquote(secret)})
