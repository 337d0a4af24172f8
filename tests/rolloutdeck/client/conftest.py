from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.client import start


@pytest.fixture
def logged_run(node: Path) -> Any:
    """A run of the name `logged`, which sends to the test's server."""
    run = start.init(name="logged")
    yield run
    run.finish(timeout=0)
    start._runs.clear()
