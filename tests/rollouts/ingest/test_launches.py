"""Which attempt a process joins if its attempt key only describes its launch."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from rollouts.ingest import launches, runs
from rollouts.ingest.attempts import get_or_create_attempt
from rollouts.models import Attempt, LaunchProcess, Project, Run
from tests.support import builders

pytestmark = pytest.mark.django_db


def build_key(rank: int, *, launch: str = "a", starter: str = "0", end: str = "0") -> str:
    return f"launch-{launch * 20}-{rank}-{starter * 8}-{end * 12}"


def open_run(project: Project, attempt: str, name: str = "grpo", **options: object) -> Run:
    return runs.open_run(project, uid=f"uid-{attempt}", name=name, attempt=attempt, **options)[0]  # type: ignore[arg-type]


def make_silent(run: Run) -> None:
    """As after a crash some minutes ago."""
    Attempt.objects.filter(run=run).update(seen_at=timezone.now() - timedelta(minutes=5))


def test_other_ranks_join_the_run_and_attempt_of_the_first(project: Project) -> None:
    first, second = open_run(project, build_key(1)), open_run(project, build_key(0))
    assert first == second and first.attempts.get().key == build_key(1)
    assert get_or_create_attempt(first, build_key(0)) == first.attempts.get()
    assert Run.objects.by_uid(f"uid-{build_key(0)}") == first
    assert open_run(project, build_key(0)) == first


def test_a_rank_that_reports_again_starts_a_later_launch_that_the_others_join(project: Project) -> None:
    first = [open_run(project, build_key(rank)) for rank in (0, 1)]
    second = [open_run(project, build_key(rank, end="1")) for rank in (1, 0)]
    assert first[0] == first[1] != second[0] == second[1]
    assert second[0].name == "grpo-2"


def test_with_resume_a_later_launch_is_a_new_attempt(project: Project) -> None:
    for end in "01":
        for rank in (0, 1):
            open_run(project, build_key(rank, end=end), resume="allow")
    assert [attempt.processes.count() for attempt in Run.objects.get().attempts.order_by("number")] == [2, 2]


@pytest.mark.parametrize("other", [{"launch": "b"}, {"name": "ppo"}], ids=["another port", "another name"])
def test_another_launch_or_name_is_another_run(project: Project, other: dict[str, str]) -> None:
    first = open_run(project, build_key(0))
    options = {name: value for name, value in other.items() if name == "launch"}
    assert open_run(project, build_key(1, **options), name=other.get("name", "grpo")) != first


def test_processes_with_different_default_names_join(project: Project) -> None:
    first = open_run(project, build_key(0), name="2026-11-23-120000-node1", default_name=True)
    assert open_run(project, build_key(1), name="2026-11-23-120001-node2", default_name=True) == first


def test_a_launch_that_is_silent_for_minutes_is_not_joined(project: Project) -> None:
    first = open_run(project, build_key(0))
    make_silent(first)
    assert open_run(project, build_key(1)) != first


def test_a_process_that_waited_in_a_spool_joins_the_launch_of_its_time(project: Project) -> None:
    first = open_run(project, build_key(0), waited=timedelta(hours=5))
    assert open_run(project, build_key(1), waited=timedelta(hours=5, seconds=20)) == first
    assert open_run(project, build_key(2), waited=timedelta(hours=9)) != first


def test_of_two_launches_at_the_same_time_a_process_joins_that_of_its_launcher(project: Project) -> None:
    first, second = (open_run(project, build_key(0, starter=starter)) for starter in "12")
    assert first != second
    assert open_run(project, build_key(1, starter="1")) == first
    assert open_run(project, build_key(1, starter="2")) == second


def test_a_run_in_the_trash_and_one_of_another_project_are_not_joined(project: Project) -> None:
    first = open_run(project, build_key(0))
    assert open_run(builders.project("code"), build_key(1)).project.slug == "code"
    Run.objects.filter(pk=first.pk).update(deleted_at=timezone.now())
    assert open_run(project, build_key(2)) != first


def test_data_of_a_rank_that_has_not_opened_the_run_joins_its_attempt(project: Project) -> None:
    run = open_run(project, build_key(0))
    assert get_or_create_attempt(run, build_key(1)) == run.attempts.get()
    assert LaunchProcess.objects.filter(run=run).count() == 2


def test_the_config_of_another_rank_is_used_only_if_there_is_none(project: Project) -> None:
    run = open_run(project, build_key(0))
    open_run(project, build_key(1), config={"lr": 1})
    open_run(project, build_key(2), config={"lr": 2})
    run.refresh_from_db()
    assert run.config == {"lr": 1} and run.attempts.get().config_changes == {}


@pytest.mark.parametrize("text", ["first", "launch-", build_key(1) + "0", build_key(1).replace("a", "G")])
def test_other_keys_are_no_launch_keys(text: str) -> None:
    assert launches.parse_launch_key(text) is None
