"""Fixtures: two runs of a project, and `pull` for the second one against the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolloutdeck.cli.entry import main
from rollouts.models import Project, Run
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.replay.pull.plans import CONFIG, RunCommand
from tests.support import builders


@pytest.fixture
def old_run(project: Project) -> Run:
    return builders.run(project, "grpo-1")


@pytest.fixture
def new_run(project: Project) -> Run:
    return builders.run(project, "grpo-2", config=CONFIG)


@pytest.fixture
def pull(site: Site, secret: str, tmp_path: Path) -> RunCommand:
    def run_pull(*words: str, run: str = "grpo-2") -> int:
        values = ["pull", "--project", "math", "--run", run, "--into", str(tmp_path / "into"), "--trainer", "verl"]
        return main([*values, *words, "--url", f"http://127.0.0.1:{site.port}", "--token", secret])

    return run_pull
