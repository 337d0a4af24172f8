"""The newest steps of many runs, each with the step before it."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from rollouts.live.feed import FeedItem, load_feed
from rollouts.models import Project, Run, Step
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db


def index_step(run: Run, number: int, *scores: float | None, **more: Any) -> None:
    header = {name: more.pop(name) for name in ("split", "attempt") if name in more}
    rows = [{"prompt": f"q{n}", "response": f"says {n}", "score": score, **more} for n, score in enumerate(scores)]
    index_file(run, lines(*rows), step=number, **{"format": "native", "source": f"{header}{number}", **header})


def load_items(*, limit: int = 30, **options: Any) -> list[FeedItem]:
    return load_feed(Run.objects.all(), limit=limit, **options)


def test_steps_are_listed_newest_first_whatever_their_number(run: Run, project: Project) -> None:
    index_step(run, 5, 1.0)
    index_step(builders.run(project, "other"), 9, 1.0)
    index_step(run, 1, 1.0)
    assert [(item.step.run.name, item.step.step) for item in load_items()] == [("grpo", 1), ("other", 9), ("grpo", 5)]


def test_steps_of_the_same_time_are_listed_once_with_the_highest_first(run: Run) -> None:
    for number in (2, 4, 1, 3):  # several workers index one upload
        index_step(run, number, 1.0)
    Step.objects.update(created_at=timezone.now())
    first = load_items(limit=2)
    rest = load_items(before=first[-1].step.pk)
    assert [item.step.step for item in [*first, *rest]] == [4, 3, 2, 1]


def test_a_change_is_the_difference_to_the_previous_step_of_the_same_run_and_split(run: Run, project: Project) -> None:
    index_step(run, 1, 0.0, 0.5)
    index_step(builders.run(project, "other"), 2, 1.0)
    index_step(run, 1, 1.0, split="eval")
    index_step(run, 3, 0.5, 1.0)
    newest = load_items()[0]
    assert newest.previous is not None and (newest.previous.step, newest.previous.score_mean) == (1, 0.25)
    assert newest.score_change == 0.5
    assert [item.score_change for item in load_items()[1:]] == [None, None, None]


def test_truncation_is_compared_if_both_steps_know_it_in_the_same_way(run: Run, project: Project) -> None:
    index_step(run, 1, 0.0, 0.0, truncated=True)
    index_step(run, 2, 0.0, 0.0, truncated=False)
    index_step(run, 3, 0.0, 0.0)
    last, second, first = load_items()
    assert (last.truncated, last.truncated_change) == (None, None)
    assert second.truncated is not None and (second.truncated.share, second.truncated.inferred) == (0.0, False)
    assert second.truncated_change == -1.0 and first.truncated_change is None


def test_the_worst_samples_have_different_texts_and_are_the_last_of_their_trajectory(run: Run) -> None:
    rows = [
        *({"prompt": f"q{n}", "response": "stuck", "score": 0.0} for n in range(5)),
        {"prompt": "q", "response": "turn", "score": -9.0, "trajectory": "t", "turn": 0},
        {"prompt": "q", "response": "end", "score": 0.5, "trajectory": "t", "turn": 1},
        {"prompt": "q", "response": "better", "score": 0.75},
        {"prompt": "q", "response": "best", "score": 1.0},
        {"prompt": "q", "response": "unscored"},
    ]
    index_file(run, lines(*rows), format="native")
    assert [item.tail for item in load_items()[0].worst] == ["stuck", "end", "better"]


def test_the_worst_samples_include_rows_that_are_added_later(run: Run) -> None:
    index_step(run, 1, 0.5)
    assert [item.score for item in load_items()[0].worst] == [0.5]
    index_file(run, lines({"prompt": "q", "response": "worse", "score": -1.0}), source="more", format="native")
    assert [item.score for item in load_items()[0].worst] == [-1.0, 0.5]


def test_pages_of_older_steps_have_no_gap_and_no_repetition(run: Run) -> None:
    for number in range(7):
        index_step(run, number, 1.0)
    seen = load_items(limit=3)
    rest = load_items(before=seen[-1].step.pk)
    assert [item.step.step for item in [*seen, *rest]] == [6, 5, 4, 3, 2, 1, 0]
    assert rest[0].previous is not None and rest[0].previous.step == 2
    assert load_items(split="eval") == []


def test_a_step_that_a_later_attempt_repeats_is_listed_once(run: Run) -> None:
    index_step(run, 1, 0.0, attempt="a")
    index_step(run, 2, 0.0, attempt="a")
    index_step(run, 2, 1.0, attempt="b")
    assert [(item.step.step, item.step.score_mean) for item in load_items()] == [(2, 1.0), (1, 0.0)]
