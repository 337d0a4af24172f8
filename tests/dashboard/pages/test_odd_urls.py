"""URLs with invalid parameters: pages ignore them or explain the mistake."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from dashboard.pages.sample import outline
from rollouts.findings import findings
from rollouts.models import Project, Run, Sample
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

# First values that some database refuses: a NUL character, too large a number, too long a text. Then other odd ones.
REFUSED = ("a\x00b", "9" * 40, "*" * 3000)
ODD = REFUSED + (("-1", "1e999", "²", "(" * 50) if connection.vendor == "sqlite" else ())
NAMES = {
    "/": ("name", "project", "sort", "group", "col", "show", "start", "remember", "usual"),
    "/runs/u1/": ("m", "x", "runs", "attempt", "show", "split"),
    "/runs/u1/?show=prompts": ("split", "only", "order", "start"),
    "/runs/u1/?show=table": ("m", "runs", "attempt"),
    "/runs/u1/charts.json": ("x", "runs", "attempt"),
    "/runs/u1/steps/1/": ("q", "sort", "sel", "view", "attempt", "split", "start", "beyond", "columns"),
    "/runs/u1/steps/all/": ("q", "sort", "sel", "beyond", "start"),
    "/runs/u1/groups/1/a/": ("q", "only", "whole", "name", "diff", "sel", "attempt", "split"),
    "/samples/ID/": ("q", "view", "attempt"),
    "/samples/ID/?view=tokens": ("by", "at", "as"),
    "/samples/ID/?view=diff": ("vs",),
    "/samples/ID/file/": ("key",),
    "/runs/u1/prompts/KEY/": ("at", "sel", "vs", "view", "split", "attempt"),
    "/findings/": ("project", "name", "removed"),
    "/findings/add/": ("sample", "run", "step", "split", "q", "charts", "names", "runs", "attempt", "project"),
    "/compare/": ("of", "split", "only", "start", "sel", "nth", "run", "step"),
    "/compare/?of=u1@1,u1@2": ("only", "start", "sel", "nth", "split"),
    "/go/": ("q", "run"),
    "/review/?run=u1": ("queue", "split", "upto", "seed", "batch", "sel", "q", "view"),
    "/review/?run=u1&queue=random&upto=2&batch=1": ("seed", "upto", "batch", "sel"),
    "/review/?run=u1&queue=query&q=is:unseen&upto=2&batch=1": ("ids", "sel"),
    "/review/": ("run", "queue"),
    "/live/": ("split", "project", "name", "before"),
    "/pins/": ("project", "plan", "steps", "run", "base", "add", "remove"),
    "/settings/math/": ("name",),
    "/api/v1/completions/?run=u1": ("q", "at", "split", "step"),
}


@pytest.fixture
def client_and_sample(project: Project, owner: User, client: Client) -> tuple[Client, Sample]:
    run: Run = builders.run(project, uid="u1")
    for step in (1, 2):
        index_file(run, lines({"prompt": "1+1", "response": "so\n#### 2", "score": 1.0, "group": "a"}), step)
    findings.create_finding(project, owner, title="Loops")
    client.force_login(owner)
    return client, Sample.objects.order_by("step").select_related()[0]


@pytest.mark.parametrize("path", NAMES)
def test_a_page_answers_with_any_value_of_its_parameters(client_and_sample: tuple[Client, Sample], path: str) -> None:
    client, sample = client_and_sample
    address = path.replace("ID", sample.pk).replace("KEY", sample.prompt_key)
    separator = "&" if "?" in address else "?"
    for name in NAMES[path]:
        for odd in ODD:
            answer = client.get(f"{address}{separator}{name}={quote(odd)}")
            assert answer.status_code in (200, 302, 400, 404), (name, odd[:20])


@pytest.mark.parametrize("sort", ["part:", "-part:", "rescore:", "part", "--part:x"])
def test_an_incomplete_sort_order_is_the_default_one(client_and_sample: tuple[Client, Sample], sort: str) -> None:
    for path in ("/runs/u1/steps/1/", "/runs/u1/steps/all/", "/runs/u1/groups/1/a/"):
        assert client_and_sample[0].get(path, {"sort": sort}).status_code == 200, path


def test_a_long_line_that_starts_like_code_is_parsed_in_linear_time() -> None:
    """No clock is needed: a quadratic search of a hundred thousand letters would not end."""
    assert outline.find_landmarks("```" + "a" * 100_000 + "`\n#### 1", "l")[-1].kind == "answer"
    assert outline.find_landmarks("```python " + "x " * 1000 + "\n", "l")[0].label == "python"


def test_scores_of_any_size_have_bars_that_count_them(client_and_sample: tuple[Client, Sample]) -> None:
    client, sample = client_and_sample
    for number, scores in enumerate(((1_000_000.0, 1_000_010.0), (1.0, 1e305)), start=7):
        created = [{"prompt": "1+1", "response": f"{score}", "score": score, "group": "a"} for score in scores]
        index_file(sample.step.run, lines(*created), number)
    page = client.get("/runs/u1/steps/7/").content.decode()
    assert "score&gt;=1000000 score&lt;1000001" in page
    assert client.get("/runs/u1/steps/8/").status_code == 200


def test_a_number_larger_than_any_float_in_a_config_does_not_break_the_list(
    client_and_sample: tuple[Client, Sample],
) -> None:
    client, sample = client_and_sample
    Run.objects.filter(pk=sample.step.run_id).update(config={"seed": 10**400})
    for query in ("sort=config:seed&col=config:seed", "name=seed%3D1"):
        assert client.get(f"/?{query}").status_code == 200
