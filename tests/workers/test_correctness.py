"""Workers evaluate samples with a changed correctness rule, also after a lost message or a killed worker."""

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
def sent_projects(monkeypatch: Any) -> list[int]:
    """Projects whose evaluation would be sent to the broker."""
    out: list[int] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, **_: out.extend(args))
    return out


@pytest.fixture
def project_with_rule(project: Project, owner: User) -> Project:
    create_filled_run(project)
    return correctness.change_correctness_rule(project, "score>=0.5", owner)


def test_the_task_judges_every_sample_of_the_project(project_with_rule: Project) -> None:
    tasks.evaluate_correctness(project_with_rule.pk)
    assert set(Sample.objects.values_list("score", "correct")) == {
        (0.0, False), (0.25, False), (0.5, True), (0.75, True)
    }  # fmt: skip


def test_a_message_that_was_lost_is_sent_again_until_all_is_judged(
    project_with_rule: Project, sent_projects: list[int]
) -> None:
    tasks.sweep()
    tasks.sweep()
    assert sent_projects == [project_with_rule.pk] * 2
    tasks.evaluate_correctness(project_with_rule.pk)
    tasks.sweep()
    assert sent_projects == [project_with_rule.pk] * 2


def test_the_sweep_sends_no_project_that_a_worker_is_judging(
    project_with_rule: Project, sent_projects: list[int]
) -> None:
    Project.objects.update(judging_until=timezone.now() + timedelta(seconds=30))
    tasks.sweep()
    assert sent_projects == []
    Project.objects.update(judging_until=timezone.now() - timedelta(seconds=1))
    tasks.sweep()
    assert sent_projects == [project_with_rule.pk]


def test_the_sweep_sends_no_project_without_its_own_rule(db: None, sent_projects: list[int]) -> None:
    create_filled_run(builders.project("code"))
    tasks.sweep()
    assert sent_projects == []


def test_a_project_that_was_not_sent_without_a_broker_is_sent_by_the_next_sweep(
    project_with_rule: Project, monkeypatch: Any, sent_projects: list[int]
) -> None:
    def raise_broker_error(*_: Any, **__: Any) -> None:
        raise BrokerDown("away")

    monkeypatch.setattr(dispatch, "quiet_until", 0.0)
    with monkeypatch.context() as broken:
        broken.setattr(app, "send_task", raise_broker_error)
        dispatch.send_now("evaluate_correctness", project_with_rule.pk)
    assert sent_projects == []
    dispatch.quiet_until = 0.0
    tasks.sweep()
    assert sent_projects == [project_with_rule.pk]
