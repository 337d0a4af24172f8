"""The context of `base.html`."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from dashboard.pages.common import LATEST_STEP_PAGES, PAGE_TITLES, PERMALINK_PAGES
from rollouts.storage import RESERVED_BYTES, count_free_bytes

THEMES = ("light", "dark")


def find_low_space() -> str:
    """The free MiB of the data volume if uploads are refused, else an empty text."""
    try:
        free = count_free_bytes()
    except OSError:
        return ""
    return f"{free >> 20:,}" if free < RESERVED_BYTES else ""


def page_frame(request: HttpRequest) -> dict[str, Any]:
    """Language, theme, the page's name, and the URL of the WebSocket. Runs no query."""
    match = request.resolver_match
    theme = request.COOKIES.get("theme", "")
    page = match.url_name if match else ""
    title = _(PAGE_TITLES[page]) if page in PAGE_TITLES else "Rolloutdeck"
    return {
        "language": get_language() or settings.LANGUAGE_CODE,
        "languages": settings.LANGUAGES,
        "chosen_language": request.COOKIES.get(settings.LANGUAGE_COOKIE_NAME, ""),
        "theme": theme if theme in THEMES else "",
        "page_name": page,
        "free_mib": find_low_space(),
        "reserved_mib": RESERVED_BYTES >> 20,
        "page_title": title,
        "single_keys": request.COOKIES.get("keys", "") != "off",
        "has_permalink": page in PERMALINK_PAGES,
        "has_latest_step": page in LATEST_STEP_PAGES,
        "websocket_url": f"{settings.PREFIX}/ws/",
        "root_url": f"{settings.PREFIX}/",
    }
