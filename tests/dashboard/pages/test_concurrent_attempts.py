"""Two processes of an unknown launch have an attempt each. All pages show their rows as one step."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from dashboard.pages.pins.plan_outcome import load_plan_outcome
from rollouts.ingest import open_run
from rollouts.models import Project, Run, Sample
from rollouts.prompts import load_prompt_answers, load_prompt_heatmap, load_prompt_history
from rollouts.runs import load_run_events
from tests.rollouts.support.push import index_file, lines

pytestmark = pytest.mark.django_db
SCORES = ((0.0,) * 4 + (0.5,) * 2, (1.0,) * 6)  # of the samples of a step, by attempt


def build_rows(scores: tuple[float, ...]) -> list[dict[str, Any]]:
    """Six responses that begin alike, of three groups."""
    return [
        {"prompt": f"q{n}", "group": f"g{n % 3}", "response": f"The answer is one of these.\n#### {n}", "score": score}
        for n, score in enumerate(scores)
    ]


@pytest.fixture
def run(project: Project) -> Run:
    keys = [uuid4().hex for _ in SCORES]
    for key in keys:
        run, _ = open_run(project, name="grpo", attempt=key, host="node1", resume="allow")
    for step in (1, 2):
        for key, scores in zip(keys, SCORES, strict=True):
            index_file(run, lines(*build_rows(scores)), step, format="native", source=f"{key}-{step}", attempt=key)
    run.refresh_from_db()
    return run


def read_text(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return " ".join(re.sub("<[^>]*>", " ", response.content.decode()).split())


def test_every_page_and_the_api_count_the_rows_of_all_attempts(run: Run, admin_client: Client) -> None:
    url = f"/runs/{run.uid}/steps/2/"
    step = read_text(admin_client, url)
    assert "mean score 0.583" in step and "groups 6" in step and "of 12 recorded samples" in step
    assert "groups 5 of 6" in read_text(admin_client, f"{url}?q=score>0.4")

    alike = read_text(admin_client, f"{url}?top=alike")
    assert "12 The answer is one of these. #### # begin alike · 6 groups 0.58" in alike
    template = Sample.objects.filter(step__step=2).values_list("step__templates__key", flat=True).distinct().get()
    assert f"alike:{template:010x}" in read_text(admin_client, f"/api/v1/completions/?run={run.uid}&step=2&q=alike:")
    assert "of 12 recorded samples" in read_text(admin_client, f"{url}?q=alike:{template:010x}")
    for number in (1, 2):
        sample = Sample.objects.filter(step__step=2, step__attempt__number=number).first()
        assert sample is not None
        assert "12 of 12 responses of this step begin like this one." in read_text(
            admin_client, f"/samples/{sample.pk}/"
        )

    feed = admin_client.get("/live/").content.decode()
    assert re.findall(r'aria-label="([^"]*? step \d+)"', feed) == ["grpo, train step 2", "grpo, train step 1"]
    card = read_text(admin_client, "/live/")
    assert "0.58" in card and "samples 12" in card and "zero-var 66.7 %" in card
    assert "0: 4; (0, 0.5): 0; [0.5, 1): 2; 1: 6" in feed

    assert "grpo" in read_text(admin_client, "/?q=steps:2 score:0.58..0.59")
    assert "grpo" not in read_text(admin_client, "/?q=steps:4")

    assert "restarted" not in read_text(admin_client, f"/runs/{run.uid}/")

    steps = admin_client.get(f"/api/v1/runs/{run.uid}/steps/?step=2").json()["results"]
    assert sum(row["samples"] for row in steps) == 12 and len({row["attempt"] for row in steps}) == 2
    assert admin_client.get(f"/api/v1/samples/?run={run.uid}&step=2").json()["count"] == 12


def test_the_history_of_a_prompt_and_the_heatmap_have_each_step_once(run: Run) -> None:
    key = Sample.objects.filter(step__step=2).values_list("prompt_key", flat=True).order_by("prompt_key")[0]
    (history,) = load_prompt_history(run, key, "train").histories
    assert [(step.step, step.answers) for step in history.steps] == [(1, 2), (2, 2)]
    assert len(load_prompt_answers(history, key, "train", 2)) == 2
    heatmap = load_prompt_heatmap(run, "train", "global_step")
    assert (heatmap.steps, heatmap.total_steps) == ((1, 2), 2)
    row = next(row for row in heatmap.rows if row.key == key)
    assert row.values == tuple(step.correct / step.evaluated for step in history.steps)


def test_only_an_attempt_that_is_not_concurrent_is_a_restart(run: Run) -> None:
    assert load_run_events(run) is None and load_plan_outcome(run).restarts == []
    run.attempts.update(concurrent_with=None)
    timeline = load_run_events(run)
    assert timeline and [(event.kind, event.step, event.count) for event in timeline.events] == [("restarted", 1, 2)]
    assert load_plan_outcome(run).restarts == [1]
