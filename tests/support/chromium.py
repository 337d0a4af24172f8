"""How tests, benchmark and screenshots start Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SHELL = "chromium-headless-shell"  # without windows, menus and extensions: it opens a page in half the time
PROGRAMS = (SHELL, *BROWSERS)  # those that `scripts/packages.sh` accepts
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def find_launch_options(programs: Sequence[str] = PROGRAMS) -> dict[str, Any]:
    """The distribution's Chromium where there is one, else Playwright's own."""
    program = next(filter(None, map(shutil.which, programs)), None)
    return {"args": FLAGS, **({"executable_path": program} if program else {})}
