"""Workers judge by a rule that has changed; no lost message and no killed worker leaves it half done."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerDown

from rollouts.indexing import correctness
from rollouts.models import Project, Sample
from tests.dashboard.support.api_client import create_filled_run
from tests.support import builders
from workers import dispatch, tasks
from workers.celery import app

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: Any) -> list[int]:
    """Projects that would go to the broker."""
    out: list[int] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, **_: out.extend(args))
    return out


@pytest.fixture
def ruled(project: Project, owner: User) -> Project:
    create_filled_run(project)
    return correctness.change_correctness_rule(project, "score>=0.5", owner)


def test_the_task_judges_every_sample_of_the_project(ruled: Project) -> None:
    tasks.evaluate_correctness(ruled.pk)
    assert set(Sample.objects.values_list("score", "correct")) == {
        (0.0, False), (0.25, False), (0.5, True), (0.75, True)
    }  # fmt: skip


def test_a_message_that_was_lost_is_sent_again_until_all_is_judged(ruled: Project, sent: list[int]) -> None:
    tasks.sweep()
    tasks.sweep()
    assert sent == [ruled.pk] * 2
    tasks.evaluate_correctness(ruled.pk)
    tasks.sweep()
    assert sent == [ruled.pk] * 2


def test_the_sweep_leaves_a_project_alone_while_a_worker_is_at_it(ruled: Project, sent: list[int]) -> None:
    Project.objects.update(judging_until=timezone.now() + timedelta(seconds=30))
    tasks.sweep()
    assert sent == []
    Project.objects.update(judging_until=timezone.now() - timedelta(seconds=1))
    tasks.sweep()
    assert sent == [ruled.pk]


def test_projects_without_a_rule_of_their_own_cost_the_sweep_nothing(db: None, sent: list[int]) -> None:
    create_filled_run(builders.project("code"))
    tasks.sweep()
    assert sent == []


def test_a_broker_that_is_away_does_not_hinder_the_change(ruled: Project, monkeypatch: Any, sent: list[int]) -> None:
    def down(*_: Any, **__: Any) -> None:
        raise BrokerDown("away")

    monkeypatch.setattr(dispatch, "quiet_until", 0.0)
    with monkeypatch.context() as broken:
        broken.setattr(app, "send_task", down)
        dispatch.send_now("evaluate_correctness", ruled.pk)
    assert sent == []
    dispatch.quiet_until = 0.0
    tasks.sweep()
    assert sent == [ruled.pk]
