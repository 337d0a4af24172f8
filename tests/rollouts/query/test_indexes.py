"""On PostgreSQL, a search in one run reads by index, however many samples other runs have."""

from __future__ import annotations

import pytest
from django.db import connection

from rollouts.models import Project, Run, Sample
from rollouts.query import find_samples
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db
ON_POSTGRES = pytest.mark.skipif(connection.vendor != "postgresql", reason="about the plans of PostgreSQL")


@pytest.fixture
def run(project: Project) -> Run:
    for name in ("grpo", "other"):
        run = builders.run(project, name)
        for step in (1, 2):
            index_file(
                run, lines(*(generation(f"{n}+1?", f"{n + 1}", score=float(n), step=step) for n in range(3))), step
            )
    return Run.objects.get(name="grpo")


def explain(run: Run, q: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # otherwise a small table is scanned
    return str(find_samples(run, q=q).samples.order_by().values("pk").explain())


@ON_POSTGRES
def test_the_steps_of_a_run_are_a_condition_of_the_index(run: Run) -> None:
    assert "step_id = ANY (" in explain(run, "is:truncated")


@ON_POSTGRES
@pytest.mark.parametrize("chars", [5, 26])
def test_a_prompt_is_found_by_its_index(run: Run, chars: int) -> None:
    key = Sample.objects.filter(step__run=run).order_by("pk")[0].prompt_key
    plan = explain(run, f"prompt:{key[:chars]}")
    assert "sample_by_prompt" in plan, plan


def test_the_beginning_of_a_prompt_key_finds_the_same_samples(run: Run) -> None:
    samples = list(Sample.objects.filter(step__run=run))
    for key in {sample.prompt_key for sample in samples}:
        wanted = {sample.pk for sample in samples if sample.prompt_key == key}
        for chars in (26, 25, 8):
            found = find_samples(run, q=f"prompt:{key[:chars]}").samples
            assert {sample.pk for sample in found} == wanted, chars
    assert not find_samples(run, q=f"prompt:{samples[0].prompt_key}x").samples.exists()
    assert find_samples(run, q=f"prompt:{samples[0].prompt_key[:1]}").samples.exists()
