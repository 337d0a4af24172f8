from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import queues
from rollouts.labels import save_rubric
from rollouts.models import Project, Queue, QueueSlot, Run
from tests.rollouts.support.query_rows import push
from tests.support import builders

QUESTIONS = [
    {"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True},
    {"key": "quality", "title": "Reasoning", "kind": "rating", "minimum": 1, "maximum": 5},
]
YES = {"correct": {"value": True}}


@pytest.fixture
def run(project: Project) -> Run:
    """Three steps of two groups with four responses; the score rises with the step and the response."""
    run = builders.run(project)
    for step in (1, 2, 3):
        rows = [
            {"response": f"{'word ' * (4 - n)}{step}", "group": group, "index": n, "score": step / 10 + n / 100,
             "data_source": {"a": "gsm8k", "b": "zh"}[group]}
            for group in "ab"
            for n in range(4)
        ]  # fmt: skip
        push(run, rows, step=step)
    return run


@pytest.fixture
def lead(project: Project) -> User:
    user = builders.member(project, "lena", "maintainer")
    save_rubric(project, user, QUESTIONS, "Look at the **last** line.")
    return user


@pytest.fixture
def ann(project: Project) -> User:
    return builders.member(project, "ann", "annotator")


@pytest.fixture
def bob(project: Project) -> User:
    return builders.member(project, "bob", "annotator")


def create_queue(run: Run, by: User, **settings: Any) -> Queue:
    return queues.create_queue(run.project, by, {"name": "check", "runs": [run], **settings})


def claim_slot(queue: Queue, user: User) -> QueueSlot:
    slot = queues.claim_next(queue, user)
    assert slot is not None
    return slot


def answer_next_item(queue: Queue, user: User) -> QueueSlot:
    slot = claim_slot(queue, user)
    queues.submit_answers(slot.item, user, YES, seconds=4.0)
    return slot
