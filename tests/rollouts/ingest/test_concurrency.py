"""Which attempts of a run ran at the same time, and what they supersede."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from rollouts.ingest import (
    end_attempts,
    finish_attempt,
    list_running_attempts,
    mark_superseded_steps,
    open_run,
    recheck_concurrent_attempts,
    record_heartbeat,
)
from rollouts.ingest.attempts import get_or_create_attempt
from rollouts.ingest.concurrency import group_attempts
from rollouts.metrics import append_points, load_curves
from rollouts.models import Attempt, Project, Run, Step
from rollouts.samples import MetricPoint
from tests.support import builders

pytestmark = pytest.mark.django_db
NOW = timezone.now()


def get_time(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def build_attempt(
    number: int, start: float, alive: float, end: float | None = None, key: str = "", host: str = "node1"
) -> Attempt:
    times = {
        "created_at": get_time(start),
        "alive_at": get_time(alive),
        "ended_at": None if end is None else get_time(end),
    }
    return Attempt(pk=number, number=number, key=key or uuid4().hex, host=host, **times)


@pytest.mark.parametrize(
    ("attempts", "groups"),
    [
        # None has ended.
        ([build_attempt(1, -10, -10), build_attempt(2, -9, -9), build_attempt(3, -8, -8)], {1: 1, 2: 1, 3: 1}),
        # The first ended while the second ran.
        ([build_attempt(1, -10, -10, -2), build_attempt(2, -9, -9)], {1: 1, 2: 1}),
        # A restart after the end.
        ([build_attempt(1, -10, -10, -9), build_attempt(2, -8, -8)], {}),
        # Silent since before the second started: it was killed.
        ([build_attempt(1, -500, -200), build_attempt(2, -180, -10)], {1: 0}),
        # A heartbeat after the second started.
        ([build_attempt(1, -500, -170), build_attempt(2, -180, -10)], {1: 1, 2: 1}),
        # A process on its host has found that it ended.
        ([build_attempt(1, -60, -30, -30), build_attempt(2, -20, -20)], {}),
        # One of its processes ended, another one is still running.
        ([build_attempt(1, -60, -30, -40), build_attempt(2, -35, -5)], {1: 1, 2: 1}),
        # The launch is known: a restart.
        ([build_attempt(1, -60, -30), build_attempt(2, -20, -20, key="relaunch-2")], {}),
        # But the first is still running.
        ([build_attempt(1, -600, -10), build_attempt(2, -120, -20, key="relaunch-2")], {1: 1, 2: 1}),
        # It may be about to end.
        ([build_attempt(1, -60, -30), build_attempt(2, -50, -30, key="relaunch-2")], {}),
        ([build_attempt(1, -90, -60, -60), build_attempt(2, -50, -20), build_attempt(3, -40, -20)], {2: 2, 3: 2}),
    ],
)
def test_attempts_are_grouped_by_the_times_at_which_they_ran(attempts: list[Attempt], groups: dict[int, int]) -> None:
    assert group_attempts(attempts, NOW) == {pk: first for pk, first in groups.items() if first}


def open_attempts(project: Project, keys: Iterable[str]) -> Run:
    for key in keys:
        run, _ = open_run(project, name="grpo", attempt=key, host="node1", resume="allow")
    for attempt in run.attempts.all():
        Step.objects.create(run=run, attempt=attempt, split="train", step=1, samples=3)
        append_points(run, attempt, [MetricPoint(1, {"loss": 0.5})])
    mark_superseded_steps(run)
    return run


def count_visible(run: Run) -> int:
    return run.steps.current().count()


def test_processes_of_an_unknown_launch_show_all_rows_and_points_and_are_listed(project: Project) -> None:
    keys = [uuid4().hex for _ in range(3)]
    run = open_attempts(project, keys)
    assert count_visible(run) == 3
    assert [attempt.key for attempt in list_running_attempts(run, keys[2])] == keys[:2]
    curves = load_curves(run, ["loss"])[run.uid]["loss"]
    assert [curve["values"] for curve in curves] == [[0.5]] * 3


def test_named_attempts_supersede_each_other(project: Project) -> None:
    run = open_attempts(project, "abc")
    assert count_visible(run) == 1 and not list_running_attempts(run, "c")


def test_an_attempt_is_superseded_as_soon_as_its_end_is_known(project: Project) -> None:
    keys = [uuid4().hex for _ in range(2)]
    run = open_attempts(project, keys)
    end_attempts(run, keys[:1])
    assert count_visible(run) == 1 and not list_running_attempts(run, keys[1])
    assert not run.attempts.exclude(concurrent_with=None).exists()


def test_the_sweep_notices_that_an_attempt_was_silent_since_the_next_one_started(project: Project) -> None:
    keys = [uuid4().hex for _ in range(2)]
    run = open_attempts(project, keys)
    assert recheck_concurrent_attempts() == 0
    for key, seconds in zip(keys, (-200, -150), strict=True):
        run.attempts.filter(key=key).update(created_at=get_time(seconds), alive_at=get_time(seconds))
    run.attempts.filter(key=keys[1]).update(alive_at=get_time(-5))
    assert recheck_concurrent_attempts() == 1
    assert count_visible(run) == 1
    assert recheck_concurrent_attempts() == 0


@pytest.mark.parametrize("waited", [0, 20])
def test_an_attempt_that_starts_while_the_clock_is_set_back_is_a_restart(project: Project, waited: int) -> None:
    """Each launch has a key of its own, so only the times tell a restart from a process that runs next to another."""
    first, second = uuid4().hex, uuid4().hex
    with time_machine.travel(NOW):
        run = builders.run(project)
        record_heartbeat(run, attempt=first)
    with time_machine.travel(NOW - timedelta(days=1)):
        get_or_create_attempt(run, second, waited=timedelta(seconds=waited))
        record_heartbeat(run, attempt=second)
    with time_machine.travel(NOW + timedelta(minutes=5)):
        record_heartbeat(run, attempt=second)
        recheck_concurrent_attempts()
    assert not run.attempts.exclude(concurrent_with=None).exists()
    assert [attempt.key for attempt in run.attempts.order_by("number")] == [first, second]


def test_a_heartbeat_of_an_earlier_attempt_shows_its_rows_again(project: Project) -> None:
    run = open_attempts(project, ["first", "second"])
    run.attempts.update(created_at=get_time(-120), alive_at=get_time(-120))
    version = Run.objects.get().version
    record_heartbeat(run, attempt="first", dropped={"spool": {"rows": 1}})  # of a process that ended
    assert count_visible(run) == 1
    record_heartbeat(run, attempt="first", step=4)
    assert count_visible(run) == 2 and Run.objects.get().version > version


def test_the_run_ends_with_its_last_attempt(project: Project) -> None:
    keys = [uuid4().hex for _ in range(3)]
    run = open_attempts(project, keys)
    for key in (keys[2], keys[0]):
        finish_attempt(run, key)
        assert Run.objects.get().outcome == ""
    finish_attempt(run, keys[1])
    assert Run.objects.get().outcome == "finished"
    assert count_visible(run) == 3


def test_an_end_that_waited_in_a_spool_counts_from_its_time(project: Project) -> None:
    first, second = uuid4().hex, uuid4().hex
    run, _ = open_run(project, name="grpo", attempt=first, waited=timedelta(hours=5))
    finish_attempt(run, first, waited=timedelta(hours=4))
    open_run(project, name="grpo", attempt=second, resume="allow", waited=timedelta(hours=3))
    assert not run.attempts.exclude(concurrent_with=None).exists()
    finish_attempt(run, first, waited=timedelta(hours=2))
    assert run.attempts.exclude(concurrent_with=None).count() == 2


def test_an_attempt_that_is_opened_after_it_ended_has_ended(project: Project) -> None:
    keys = [uuid4().hex for _ in range(2)]
    run = open_attempts(project, keys)
    for key in keys:
        finish_attempt(run, key, waited=timedelta(seconds=2))
    assert Run.objects.get().outcome == "finished"


def test_the_page_warns_of_attempts_that_ran_at_the_same_time(project: Project, owner: User) -> None:
    run, reader = builders.run(project), Client()
    reader.force_login(owner)
    attempts = [builders.attempt(run, name) for name in "abc"]
    assert "separate attempts" not in reader.get(f"/runs/{run.uid}/").content.decode()
    Attempt.objects.filter(run=run).update(concurrent_with=attempts[0])
    page = reader.get(f"/runs/{run.uid}/").content.decode()
    assert "3 processes reported as separate attempts" in page and "ROLLOUTDECK_ATTEMPT" in page
