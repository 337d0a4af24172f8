"""Addresses that only programs of this machine reach."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_loopback_host(host: str | None) -> bool:
    """Whether the host is `localhost` or a loopback address, such as 127.0.0.1 and [::1]."""
    import ipaddress  # a trainer pays for what it imports

    try:
        return host == "localhost" or ipaddress.ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    """Whether the host of the URL is one. False for a text that is no URL."""
    try:
        return is_loopback_host(urlsplit(url).hostname)
    except ValueError:
        return False
