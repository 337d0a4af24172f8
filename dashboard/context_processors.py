"""What every page's frame needs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from dashboard.pages.common import LATEST_STEP_PAGES, PAGE_TITLES, PERMALINK_PAGES

THEMES = ("light", "dark")


def page_frame(request: HttpRequest) -> dict[str, Any]:
    """Theme, name of this page, and the address of the doorbell; costs no query."""
    match = request.resolver_match
    chosen = request.COOKIES.get("theme", "")
    page = match.url_name if match else ""
    return {
        "language": get_language() or settings.LANGUAGE_CODE,
        "languages": settings.LANGUAGES,
        "language_chosen": request.COOKIES.get(settings.LANGUAGE_COOKIE_NAME, ""),
        "theme": chosen if chosen in THEMES else "",
        "page_name": page,
        "page_title": get_page_title(page),
        "single_keys": request.COOKIES.get("keys", "") != "off",
        "linked": page in PERMALINK_PAGES,
        "follows": page in LATEST_STEP_PAGES,
        "feed": f"{settings.PREFIX}/ws/",
        "root": f"{settings.PREFIX}/",
    }


def get_page_title(page: str | None) -> str:
    """What stands as a heading where a page has none of its own."""
    return _(PAGE_TITLES[page]) if page in PAGE_TITLES else (page or "Rolloutdeck").capitalize()
