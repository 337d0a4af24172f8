"""Addresses of our own scripts and styles, with a hash so that a new release is never mixed with an old one."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import cache
from pathlib import Path

from django.conf import settings
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

STATIC_DIR = Path(settings.BASE_DIR) / "static"
IMPORT_PATTERN = re.compile(r'^import (?:[^"\n]* from )?"(\.[\w./]+\.js)";', re.MULTILINE)


@cache
def get_release_hash() -> str:
    """One hash over all our own scripts, styles, templates and translations: it changes when any of them does."""
    sums = hashlib.sha256()
    for folder in (
        STATIC_DIR / "css",
        STATIC_DIR / "js",
        Path(settings.BASE_DIR) / "templates",
        *settings.LOCALE_PATHS,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            sums.update(path.read_bytes())
    return sums.hexdigest()[:10]


def build_asset_url(path: str) -> str:
    """`/static/1f2e3d4c5b/css/app.css`. The release stands in the path, so that what a script imports has it too."""
    return f"{settings.STATIC_URL}{get_release_hash()}/{path}"


@cache
def find_script_imports(*scripts: str) -> frozenset[str]:
    """The names in `js/` of all that these scripts import, and that those import."""
    found: set[str] = set()
    waiting = list(scripts)
    while waiting:
        name = waiting.pop()
        addresses = IMPORT_PATTERN.findall((STATIC_DIR / "js" / name).read_text())
        new = {posixpath.normpath(posixpath.join(posixpath.dirname(name), address)) for address in addresses} - found
        found |= new
        waiting += new
    return frozenset(found)


@cache
def render_module_script(script: str, *soon: str) -> SafeString:
    """A script of `js/`. What it imports is asked for with it, else a browser finds one level after the other; so are
    those that the page's scripts fetch as soon as they run."""
    names = sorted({*soon, *find_script_imports(script, *soon)} - {script})
    preloads = format_html_join(
        "", '<link rel="modulepreload" href="{}">', ((build_asset_url(f"js/{name}"),) for name in names)
    )
    return format_html('{}<script src="{}" type="module"></script>', preloads, build_asset_url(f"js/{script}"))
