"""The long run of the benchmark is one that the product could have made."""

from __future__ import annotations

import pytest

from dashboard.pages.common import step_strip
from rollouts.models import Run, Sample
from rollouts.samples import bodies
from scripts.bench import seed
from tests.rollouts.support.push import indexed, lines

pytestmark = pytest.mark.django_db


def test_a_run_that_is_made_longer_has_its_steps_again_and_again(run: Run) -> None:
    for step in (1, 2):
        rows = [{"prompt": "1+1?", "response": f"{step} and {n}", "score": step / 4} for n in range(3)]
        indexed(run, lines(*rows), step)
    before = Run.objects.get(pk=run.pk).version
    seed.grow(run, 7)
    run.refresh_from_db()
    assert run.version > before
    assert list(run.steps.order_by("step").values_list("step", "samples")) == [(step, 3) for step in range(1, 8)]
    rendered = step_strip.load_step_strip(run, "train")
    assert [bar.score for bar in rendered.bars] == [0.25, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25]
    rows = list(Sample.objects.filter(step__run=run).select_related("step"))
    result = bodies.load_bodies(rows)
    assert len(result) == 21
    assert all(result[row.pk].response.startswith(f"{2 - row.step.step % 2} and") for row in rows)
