"""URLs that people open in a browser, see ROLLOUTDECK_PUBLIC_URL."""

from django.conf import settings


def build_public_url(path: str) -> str:
    """The URL of a path of this server, such as `/runs/UID/`, without the server's prefix."""
    return f"{settings.PUBLIC_URL}{path}"


def add_public_origin(path: str) -> str:
    """The URL of a path with the server's prefix: what `reverse` returns, or the path of a request."""
    return settings.PUBLIC_URL.removesuffix(settings.PREFIX) + path
