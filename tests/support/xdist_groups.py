"""Which tests one worker of pytest-xdist runs after another: those that share a product, in the order of their group.

Its own `--dist loadgroup` writes the group into a field of pytest's that pytest 9.2 no longer has, and then groups
nothing without a word.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOUR = "tests/browser/test_every_page.py"
SITE = re.compile(r"\[(?:.*-)?(direct|nginx)(?:-.*)?\]\Z")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together | None:
    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


class Together(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """The product that a test drives: of the browser's tests the site, of those at the top their file's; else none.

    The tour of all pages takes as long as a third of the other tests, so it has a site of its own.
    """
    path, _, name = nodeid.partition("::")
    if path == TOUR:
        return path
    if path.startswith("tests/browser/") and (site := SITE.search(name)):
        return site[1]
    return path if path.count("/") == 1 else nodeid
