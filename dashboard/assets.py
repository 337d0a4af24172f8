"""Addresses of our own scripts and styles, with a hash so that a new release is never mixed with an old one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from django.conf import settings

STATIC = Path(settings.BASE_DIR) / "static"


@cache
def release() -> str:
    """One hash over all our own scripts, styles, templates and translations: it changes when any of them does."""
    sums = hashlib.sha256()
    for folder in (STATIC / "css", STATIC / "js", Path(settings.BASE_DIR) / "templates", *settings.LOCALE_PATHS):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            sums.update(path.read_bytes())
    return sums.hexdigest()[:10]


def url(path: str) -> str:
    """`/static/1f2e3d4c5b/css/app.css`. The release stands in the path, so that what a script imports has it too."""
    return f"{settings.STATIC_URL}{release()}/{path}"
