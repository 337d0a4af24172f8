"""A step of CURE from end to end: its own reward.py scores it, import, pin, plan, pull, and reward.py scores it again
under the names of the next run. CURE is a checkout of Gen-Verse/CURE; reward.py needs only numpy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
from tests.rolloutdeck.trainers.cure.test_step_files import BASE, CASE, CODE, DATA
from tests.support import builders

pytestmark = [pytest.mark.trainers, pytest.mark.django_db(transaction=True)]

OLD, NEXT = ("Qwen/Qwen2.5-7B-Instruct", "CodeContests"), ("/models/next", "LeetCode")


class Cure:
    """A folder of CURE, with the scripts of its checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "optimization/temp_data"
        self.data.mkdir(parents=True)
        for name in ("reward.py", "optimization_config.py"):
            shutil.copy(Path(os.environ["CURE"], "optimization", name), folder / "optimization")

    def score(self, model: str, dataset: str) -> None:
        words = ["reward.py", "--pretrained_model", model, "--dataset", dataset]
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder / "optimization", capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def read_rewards(self) -> list[list[dict[str, Any]]]:
        """Reads the rewards that train.py reads: of programs, and of tests."""
        return [json.loads((self.data / name).read_text()) for name in (CODE, CASE)]


@pytest.fixture
def first_training(tmp_path: Path) -> Cure:
    if "CURE" not in os.environ:
        pytest.skip("needs CURE, a checkout of CURE (github.com/Gen-Verse/CURE)")
    cure = Cure(tmp_path / "first")
    shutil.copy(DATA / f"step0/temp_data/{BASE}", cure.data)
    cure.score(*OLD)
    return cure


@pytest.fixture
def run_command(first_training: Cure, site: Site, owner: User, project: Project, tmp_path: Path) -> RunCommand:
    run_command = build_command_runner(
        site, builders.token(owner, "ingest", "read", on=project), tmp_path / "into", "cure"
    )
    import_folder(run_command, first_training.folder)
    return run_command


def pull_and_copy(
    run_command: RunCommand, owner: User, into: Path, capsys: pytest.CaptureFixture[str], **more: Any
) -> Cure:
    """Pulls into a second folder of CURE and runs the copy command that `pull` prints."""
    save_plan(owner, (pin_step(0, owner, step_kind="iteration"), 0), **more)
    capsys.readouterr()
    assert run_command("pull", "--set", f"pretrained_model={NEXT[0]}", f"dataset={NEXT[1]}") == 0
    copy, train = capsys.readouterr().out.splitlines()
    assert train == f"(cd optimization && python -m train --pretrain {NEXT[0]})"
    cure = Cure(into)
    subprocess.run(copy, shell=True, check=True, cwd=into)
    assert {oct(path.stat().st_mode & 0o777) for path in cure.data.iterdir()} == {"0o644"}
    return cure


def test_a_replayed_step_has_the_same_rewards_also_when_it_is_scored_again(
    first_training: Cure, run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = pull_and_copy(run_command, owner, tmp_path / "second", capsys)
    assert second.read_rewards() == first_training.read_rewards()
    second.score(*NEXT)
    assert second.read_rewards() == first_training.read_rewards()


def test_without_flagged_answers_reward_py_normalises_the_other_answers(
    first_training: Cure, run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Sample.objects.filter(visible=True).order_by("ordinal")
    flag_samples(owner, rows[0], rows[4])  # of the first task a program and a test
    second = pull_and_copy(run_command, owner, tmp_path / "second", capsys, on_selected="exclude")
    assert [len(reward) for reward in second.read_rewards()] == [
        len(reward) - 1 for reward in first_training.read_rewards()
    ]
    second.score(*NEXT)
    for before, after in zip(first_training.read_rewards(), second.read_rewards(), strict=True):
        task = before[0]["prompt"]
        left = [row["reward"] for row in after if row["prompt"] == task]
        assert len(left) in (0, 3) and sum(left) == pytest.approx(0.0)  # none where the others are all alike
        assert [row for row in after if row["prompt"] != task] == [row for row in before if row["prompt"] != task]
    assert first_training.read_rewards()[0][0]["prompt"] == second.read_rewards()[0][0]["prompt"]
