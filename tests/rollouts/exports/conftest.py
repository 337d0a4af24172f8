from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from rollouts.labels import save_rubric
from rollouts.models import Project, Run, Sample
from tests.rollouts.support.exports import QUESTIONS
from tests.rollouts.support.query_rows import push
from tests.support import builders

LONG = " ".join(f"word{n}" for n in range(200))


@pytest.fixture
def run(project: Project, mate: User) -> Run:
    save_rubric(project, mate, QUESTIONS)
    run = builders.run(project, "grpo")
    push(
        run,
        [
            {"prompt": "p1", "response": "best", "score": 1.0, "group": "a", "index": 0},
            {"prompt": "p1", "response": "middle", "score": 0.5, "group": "a", "index": 1},
            {"prompt": "p1", "response": "worst", "score": 0.0, "group": "a", "index": 2},
            {"prompt": "p2", "response": "same", "score": 1.0, "group": "b", "index": 0},
            {"prompt": "p2", "response": "same", "score": 0.0, "group": "b", "index": 1},
            {"prompt": "p3", "response": f"{LONG} one", "score": 1.0, "group": "c", "index": 0},
            {"prompt": "p3", "response": f"{LONG} two", "score": 1.0, "group": "c", "index": 1},
            {"prompt": "held out", "response": "x", "score": 1.0, "group": "d", "index": 0},
            {"prompt": "held out", "response": "y", "score": 0.0, "group": "d", "index": 1},
        ],
    )
    push(run, [{"prompt": "held out", "response": "z", "score": 1.0}], split="eval")
    return run


@pytest.fixture
def sample_ids(run: Run) -> dict[str, str]:
    return {tail: pk for pk, tail in Sample.objects.filter(step__run=run).values_list("pk", "tail")}
