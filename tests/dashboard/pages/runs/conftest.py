"""Six runs, and the browser of an owner."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Run
from tests.dashboard.pages.runs.support import create_runs


@pytest.fixture
def runs(project: Project) -> list[Run]:
    return create_runs(project, 6)


@pytest.fixture
def owner_client(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client
