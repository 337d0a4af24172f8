from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from rollouts.models import Project, Run
from tests.support import builders


@pytest.fixture
def authorization(owner: User, project: Project) -> str:
    return f"Bearer {builders.token(owner, 'ingest', on=project)}"


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, uid="u1")
