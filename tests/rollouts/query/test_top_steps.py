"""Pages of sorted samples of a long run are correct although only some steps are read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from django.db.models import F, Q
from django.test import Client

from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.models import Project, Run, Sample, SampleQuerySet, Step
from rollouts.query import search
from rollouts.query.search import find_samples
from rollouts.query.top_steps import MIN_STEPS, find_top_steps
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

STEPS, ROWS = 24, 6
COUNTS = (0, 1, 7, 50, STEPS * ROWS, STEPS * ROWS + 9)


@pytest.fixture
def run(project: Project) -> Run:
    """Steps whose scores and lengths differ, with many equal ones. Some samples, and all of a step, have no score."""
    run, chance = builders.run(project), random.Random(4)
    for step in range(STEPS):
        rows = []
        for row in range(ROWS):
            score = None if step == 5 or chance.random() < 0.1 else chance.choice((0.0, 0.5, 1.0, step / 10))
            response = "x" * chance.randrange(1, 40) + f" {step}.{row}"
            rows.append(
                generation(f"{step}.{row}?", response, step=step, **({} if score is None else {"score": score}))
            )
        index_file(run, lines(*rows), step)
    Sample.objects.filter(Q(step__step=5) | Q(ordinal=2, step__step__lt=9)).update(score=None)
    for row in Step.objects.all():
        recompute_step_stats(row)
    return run


@pytest.mark.django_db
@pytest.mark.parametrize("q", ["", "len>20", "score>=1"])
def test_a_page_is_that_of_all_samples_in_order(run: Run, q: str) -> None:
    for ordering in ("score", "-score", "len", "-len", "tokens", "step", "-step"):
        result = find_samples(run, q=q, ordering=ordering)
        ids = [sample.pk for sample in result.samples]
        for count in COUNTS:
            assert [sample.pk for sample in result.find_first_samples(count)[:count]] == ids[:count], (ordering, count)


@pytest.mark.django_db
def test_the_api_returns_an_empty_page_if_nothing_matches(run: Run, reader: Client) -> None:
    assert run.steps.count() >= MIN_STEPS
    for q in ("zebra", "score>99"):
        answer = reader.get("/api/v1/samples/", {"run": run.uid, "q": q})
        assert (answer.status_code, answer.json()["count"], answer.json()["results"]) == (200, 0, [])


@pytest.mark.django_db
def test_a_page_reads_few_steps(run: Run) -> None:
    assert Sample.objects.filter(score=None).count() > ROWS
    result = find_samples(run, ordering="-len")

    def limit(ids: Sequence[int]) -> SampleQuerySet:
        return result.limit_to_steps(pk__in=ids).samples

    steps = find_top_steps(result.scope, "-len", 3, limit, filtered=False)
    assert steps is not None and 0 < len(steps) <= 3


@pytest.mark.django_db
def test_samples_with_equal_values_are_ordered_by_newest_step(run: Run) -> None:
    first = list(find_samples(run, q="score:0..0", ordering="score").find_first_samples(20)[:20])
    steps = [sample.step.step for sample in first]
    assert len(set(steps)) > 1 and steps == sorted(steps, reverse=True)


@pytest.mark.django_db
def test_steps_of_an_older_version_and_a_partial_search_give_the_same_page(run: Run) -> None:
    result = find_samples(run, ordering="-len", time_budget=search.body_scan.TimeBudget(9, cursor=3))
    ids = [sample.pk for sample in result.samples]
    assert 0 < len(ids) < STEPS * ROWS
    assert [sample.pk for sample in result.find_first_samples(9)[:9]] == ids[:9]
    Step.objects.filter(run=run, step=9).update(ranges=None)
    Sample.objects.filter(step__run=run, step__step=9).update(chars=F("chars") + 1000)
    result = find_samples(run, ordering="-len")
    assert {sample.step.step for sample in result.find_first_samples(ROWS)[:ROWS]} == {9} and STEPS > MIN_STEPS


@pytest.mark.django_db
def test_a_page_that_needs_more_steps_than_the_limit_is_complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollouts.query.top_steps.MAX_STEPS", 4)
    result = find_samples(run, ordering="-len")
    ids = [sample.pk for sample in result.samples]
    for count in (3, 5, 20):
        assert [sample.pk for sample in result.find_first_samples(count)[:count]] == ids[:count], count


@pytest.mark.django_db
def test_new_samples_in_a_step_with_dropped_samples_are_found(run: Run) -> None:
    step = Step.objects.get(run=run, step=3)
    Step.objects.filter(pk=step.pk).update(dropped=1)
    longest = Sample.objects.filter(step=step).first()
    assert longest is not None
    Sample.objects.filter(pk=longest.pk).update(chars=9999)
    step.refresh_from_db()
    recompute_step_stats(step)
    assert find_samples(run, ordering="-len").find_first_samples(1)[0] == longest
