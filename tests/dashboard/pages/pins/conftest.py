"""A run with files of two steps, a maintainer who pinned the second one, and their browser."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Pin, Project, Run
from rollouts.pins import pins
from tests.dashboard.pages.pins.support import create_remote_artifact
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, uid="grpo")
    for step in (1, 2):
        index_file(run, lines(generation(step=step), generation(response="5", score=0.0, step=step)), step)
        create_remote_artifact(run, step)
    run.refresh_from_db()
    return run


@pytest.fixture
def maintainer(project: Project) -> User:
    return builders.member(project, "kim", "maintainer")


@pytest.fixture
def pin(run: Run, maintainer: User) -> Pin:
    return pins.pin_step(run, 2, maintainer, note="half of the groups still have variance")[0]


@pytest.fixture
def maintainer_client(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client
