"""The demo data has something for each page and stays the same when it is loaded again."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from rollouts.demo import load_demo
from rollouts.models import EvidenceItem, Label, MetricRow, Pin, Project, Replay, Run, Sample, Step
from rollouts.query import find_samples

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


def count_rows() -> dict[str, int]:
    return {
        model.__name__: model.objects.count() for model in (EvidenceItem, Label, MetricRow, Pin, Replay, Sample, Step)
    }


def test_every_page_has_something_to_show_and_loading_twice_changes_nothing(project: Project, owner: User) -> None:
    runs = load_demo(project, owner)
    assert [run.name for run in runs] == ["tiny-grpo", "tiny-grpo-any", "tiny-grpo-replay"]
    counts = count_rows()
    assert counts["EvidenceItem"] == counts["Label"] == 3 and counts["Pin"] == counts["Replay"] == 1
    load_demo(project, owner)
    assert count_rows() == counts
    replayed = Replay.objects.get()
    assert (replayed.step, replayed.outcome, replayed.pin) == (40, "hit", Pin.objects.get())
    shown = {run.name: Sample.objects.visible().filter(step__run=run, step__split="train") for run in runs}
    same = [
        set(shown[name].filter(step__step=40).values_list("tail", flat=True))
        for name in ("tiny-grpo", "tiny-grpo-replay")
    ]
    assert same[0] == same[1]
    check_faulty_grader(runs[1])


def check_faulty_grader(faulty: Run) -> None:
    """Its scores are high, and the samples whose answer is another than the scored one are found."""
    last = Step.objects.filter(run=faulty, split="train").latest("step")
    assert last.score_mean and last.score_mean > 0.6
    rows = last.rows.visible()
    assert sum(row.tail.count("####") > 2 for row in rows) > 0.8 * rows.count()
    mismatches = find_samples(faulty, split="train", step=last.step, q="is:answer-mismatch")
    assert mismatches.total > 0.4 * rows.count()
