"""Steps of CURE are imported, pinned and written under the names that the next run reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from dashboard.pages.pins import run_commands
from rollouts.models import Artifact, Project, Run, Sample
from rollouts.replay import plans
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.replay.pull.imported import (
    RunCommand,
    build_command_runner,
    flag_samples,
    import_folder,
    pin_step,
    sha256,
)
from tests.rolloutdeck.replay.pull.plans import hash_files, save_plan
from tests.rolloutdeck.trainers.cure.test_step_files import BASE, CASE, CODE, DATA

pytestmark = pytest.mark.django_db(transaction=True)

NEXT = ("--set", "pretrained_model=/models/next", "dataset=LeetCode")
RENAMED = "outputs-rl-.models.next-LeetCode.json"
SOURCE = DATA / "step0/temp_data"


@pytest.fixture
def run_command(site: Site, secret: str, project: Project, tmp_path: Path) -> RunCommand:
    run = build_command_runner(site, secret, tmp_path / "into", "cure")
    (tmp_path / "out/step4/temp_data").mkdir(parents=True)
    for name in (BASE, CODE, CASE):
        shutil.copy(SOURCE / name, tmp_path / "out/step4/temp_data")
    import_folder(run, tmp_path / "out")
    return run


def plan_step(by: User, **more: Any) -> None:
    save_plan(by, (pin_step(4, by, step_kind="iteration"), 0), **more)


def test_a_step_is_written_unchanged_under_the_names_of_the_next_run(
    run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = Artifact.objects.all()
    assert (row.step, row.step_kind, row.state) == (4, "iteration", "ready")
    assert Run.objects.get(name="old").steps.get(split="train").samples == 32
    plan_step(owner)
    capsys.readouterr()
    assert run_command("pull", *NEXT) == 0
    assert hash_files(tmp_path / "into") == {
        f"step_0/{CODE}": sha256(SOURCE / CODE),
        f"step_0/{CASE}": sha256(SOURCE / CASE),
        f"step_0/{RENAMED}": sha256(SOURCE / BASE),
    }
    result = capsys.readouterr()
    assert result.out.splitlines() == [
        f"mkdir -p optimization/temp_data && install -m 644 {tmp_path / 'into'}/step_0/*.json optimization/temp_data/",
        "(cd optimization && python -m train --pretrain /models/next)",
    ]
    assert "without a sandbox" in result.err
    assert "model: Qwen.Qwen2.5-7B-Instruct pinned, .models.next requested" in result.err


def test_flagged_answers_are_left_out_of_the_rewards_and_of_the_answers(
    run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Sample.objects.filter(visible=True).order_by("ordinal")
    program, test = rows[1], rows[6]
    flag_samples(owner, program, test)
    plan_step(owner, on_selected="exclude")
    capsys.readouterr()
    assert run_command("pull", *NEXT) == 0
    message = capsys.readouterr().err
    assert f"{CODE} of step 4 of old is replayed without 1 of its 16 rows, which is flagged" in message
    assert "without 1 flagged program and 1 flagged test." in message
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "into/step_0").iterdir()}
    assert (len(read[CODE]), len(read[CASE])) == (15, 15)
    first = json.loads((SOURCE / BASE).read_text())[0]
    assert read[RENAMED][0]["full_code_generation"] == [first["full_code_generation"][index] for index in (0, 2, 3)]
    for name, key, position in ((CODE, "full_code_generation", 1), (CASE, "full_case_generation", 2)):
        answer = first[key][position]  # another program of the task may be a copy of it
        before, after = json.loads((SOURCE / name).read_text()), read[name]
        count = sum(row["response"].startswith(answer) for row in before)
        assert sum(row["response"].startswith(answer) for row in after) == count - 1


def test_the_command_on_the_plans_page_asks_for_model_and_data_set(
    run_command: RunCommand, owner: User, project: Project
) -> None:
    plan_step(owner)
    ((rendered,),) = run_commands.build_run_commands(project, "default", plans.find_current_revision(project), 1)
    assert rendered.lines.endswith("--trainer cure --set pretrained_model=MODEL dataset=NAME")


def test_pull_asks_for_the_model_and_data_set_that_a_run_does_not_name(
    run_command: RunCommand, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_step(owner)
    capsys.readouterr()
    assert run_command("pull") == 2
    assert "--set pretrained_model=MODEL dataset=NAME" in capsys.readouterr().err
