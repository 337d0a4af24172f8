"""How the tests start Chromium."""

from __future__ import annotations

import shutil
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")  # those that `scripts/packages.sh` accepts
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def find_launch_options() -> dict[str, Any]:
    """The distribution's Chromium where there is one, else Playwright's own."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return {"args": FLAGS, **({"executable_path": program} if program else {})}
