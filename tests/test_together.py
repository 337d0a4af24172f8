"""Tests that share a product run in one worker, so that only one worker starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.xdist_groups import get_group

SHARING = """
import os, pytest

@pytest.mark.parametrize("site", ["direct", "nginx"])
@pytest.mark.parametrize("number", range(6))
def test_it(number, site, record_property):
    with open("seen", "a") as seen:
        seen.write(f"{site} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/browser/test_live.py::test_a[chromium-direct]", "direct"),
        ("tests/browser/test_sample_views.py::test_hostile[nginx-raw]", "nginx"),
        ("tests/browser/test_every_page.py::test_every_page[chromium-direct]", "tests/browser/test_every_page.py"),
        ("tests/test_up.py::test_a_killed_child_comes_back[redis-server]", "tests/test_up.py"),
        (
            "tests/rollouts/indexing/test_indexer.py::test_x[direct]",
            "tests/rollouts/indexing/test_indexer.py::test_x[direct]",
        ),
    ],
)
def test_tests_that_share_a_product_have_the_same_group(nodeid: str, expected: str) -> None:
    assert get_group(nodeid) == expected


def test_all_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "browser"
    folder.mkdir(parents=True)
    (folder / "test_sharing.py").write_text(SHARING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from tests.support.xdist_groups import pytest_xdist_make_scheduler")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "tests/browser"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) == 12
    assert len({tuple(line) for line in seen}) == 2
