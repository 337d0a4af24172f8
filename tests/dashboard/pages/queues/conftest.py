from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.labels import save_rubric
from rollouts.models import Project, Queue, Run
from tests.rollouts.queues.conftest import QUESTIONS
from tests.rollouts.support.query_rows import push
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, "secret-run")
    rows = [
        {"prompt": "Why?", "response": f"text {n}", "group": "secret-group", "index": n, "score": 0.7654321,
         "ground_truth": "secret-truth", "data_source": "secret-source"}
        for n in range(3)
    ]  # fmt: skip
    push(run, rows, step=770077)
    return run


@pytest.fixture
def lead(project: Project) -> User:
    user = builders.member(project, "lena", "maintainer")
    save_rubric(project, user, QUESTIONS, "Look at the **last** line.")
    return user


@pytest.fixture
def annotator_client(project: Project) -> Client:
    client = Client()
    client.force_login(builders.member(project, "ann", "annotator"))
    return client


def create_queue(run: Run, lead: User, **settings: object) -> Queue:
    return queues.create_queue(run.project, lead, {"name": "check", "runs": [run], **settings})


def open_item(client: Client, queue: Queue, query: str = "") -> tuple[int, str]:
    """The id of the open item, 0 if nothing is left, and the page."""
    html = client.get(f"/queues/{queue.pk}/review/{query}").content.decode()
    item = re.search(r'data-item="(\d+)"', html)
    return (int(item[1]) if item else 0), html
