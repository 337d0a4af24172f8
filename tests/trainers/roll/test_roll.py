"""A step of ROLL from end to end: its own RolloutMockMixin dumps it, import, pin, plan, pull, and ROLL loads it again.

ROLL is a checkout of ROLL; TRAINERS_PYTHON needs what ROLL imports for it (torch, tensordict, ray, codetiming)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.models import Project, Sample
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.replay.pull.imported import (
    RunCommand,
    build_command_runner,
    flag_samples,
    import_folder,
    pin_step,
)
from tests.rolloutdeck.replay.pull.plans import save_plan
from tests.support import builders
from tests.trainers.verl.process import ROOT, require_python

pytestmark = [pytest.mark.trainers, pytest.mark.django_db(transaction=True)]

SCRIPT = Path(__file__).with_name("inside") / "steps.py"
SHAPE = ("--set", "rollout_batch_size=2", "num_return_sequences_in_group=4", "prompt_length=6", "response_length=500")


def run_roll(action: str, folder: Path, *steps: int) -> dict[str, Any]:
    """Lets real ROLL dump or load these steps, and returns what steps.py prints."""
    return dict(json.loads(run_script(SCRIPT, folder, action, str(folder), *map(str, steps)).splitlines()[-1]))


def run_script(script: Path, folder: Path, *words: str) -> str:
    """Runs a script with ROLL, and returns what it prints."""
    checkout = os.environ.get("ROLL")
    if not checkout:
        pytest.skip("needs ROLL, a checkout of ROLL (github.com/alibaba/ROLL)")
    folder.mkdir(exist_ok=True)
    python_path = os.pathsep.join([checkout, str(ROOT)])
    done = subprocess.run(
        [require_python(), str(script), *words],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": python_path, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def run_command(site: Site, owner: User, project: Project, tmp_path: Path) -> RunCommand:
    """Runs commands after the import of three dumps of ROLL: the steps 0 and 1, and step 7 of agents."""
    run_roll("dump", tmp_path / "out", 0, 1, 7)
    run_command = build_command_runner(
        site, builders.token(owner, "ingest", "read", on=project), tmp_path / "into", "roll"
    )
    import_folder(run_command, tmp_path / "out")
    return run_command


def test_roll_loads_its_dumps_at_the_steps_of_the_plan_and_fails_after_them(
    run_command: RunCommand, owner: User, tmp_path: Path
) -> None:
    before = run_roll("load", tmp_path / "out", 0, 1, 7)
    save_plan(owner, (pin_step(1, owner), 0), (pin_step(0, owner), 1), (pin_step(7, owner), 2))
    assert run_command("pull", *SHAPE) == 0
    after = run_roll("load", tmp_path / "into", 0, 1, 2, 3)
    assert (after["0"], after["1"], after["2"]) == (before["1"], before["0"], before["7"])
    assert after["3"]["error"].startswith("FileNotFoundError: [RolloutMock] Mock file not found")


def test_roll_trains_on_no_token_of_a_flagged_row_and_keeps_all_other_values(
    run_command: RunCommand, owner: User, tmp_path: Path
) -> None:
    before = run_roll("load", tmp_path / "out", 1)["1"]
    rows = Sample.objects.filter(step__step=1, visible=True).order_by("ordinal")
    flag_samples(owner, rows[2], rows[5])
    save_plan(owner, (pin_step(1, owner), 0), on_selected="exclude")
    assert run_command("pull", *SHAPE) == 0
    after = run_roll("load", tmp_path / "into", 0)["0"]
    assert after["final"] == [0 if row in (2, 5) else left for row, left in enumerate(before["final"])]
    changed = {name for name, result in before["tensors"].items() if after["tensors"][name] != result}
    assert changed == {"response_mask"}
    assert (after["columns"], after["meta"], after["rows"]) == (before["columns"], before["meta"], before["rows"])


def test_our_tracker_in_roll_writes_metrics_once_and_passes_them_to_another_tracker(tmp_path: Path) -> None:
    message = run_script(SCRIPT.with_name("tracking.py"), tmp_path / "out", str(tmp_path / "out"))
    written = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_bytes().splitlines()]
    assert written == [
        {"step": 0, "data": {"critic/score/mean": 0.0, "system/step": 0}},
        {"step": 1, "data": {"critic/score/mean": 0.1, "system/step": 1}},
        {"step": 2, "data": {"critic/score/mean": 0.5}},
    ]
    assert message.count("metrics_tag") == 3  # stdout's, which has no memory
