"""Lets one worker of pytest-xdist run all tests that share a product.

The `--dist loadgroup` of pytest-xdist writes the group into a field that pytest 9.2 no longer has, and then silently
groups nothing.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ALL_PAGES = "tests/browser/test_every_page.py"
SITE = re.compile(r"\[(?:.*-)?(direct|nginx)(?:-.*)?\]\Z")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


class GroupScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return get_group(nodeid)


def get_group(nodeid: str) -> str:
    """Returns the group of a test: its site for browser tests, its file for tests directly in tests/, else itself.

    The test of all pages takes as long as a third of the other tests, so it has a site of its own.
    """
    path, _, name = nodeid.partition("::")
    if path == ALL_PAGES:
        return path
    if path.startswith("tests/browser/") and (site := SITE.search(name)):
        return site[1]
    return path if path.count("/") == 1 else nodeid
