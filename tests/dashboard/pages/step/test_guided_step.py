"""What guidance rules did in a step, and which of its samples they selected."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.guidance import save_guidance
from rollouts.metrics import append_points
from rollouts.models import Project, Run, Sample, Step
from rollouts.samples import MetricPoint
from tests.dashboard.pages.step.test_step import get_panel, read_tiles
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

METRICS: dict[str, float | None] = {
    "guidance/version": 1, "guidance/samples": 2, "guidance/tokens": 1024, "guidance/rule/again": 1,
    "guidance/rule/half": 2, "guidance/rule/none": 0,
}  # fmt: skip
RULES = [
    {"key": "again", "query": "is:flagged", "action": "mask"},
    {"key": "half", "query": "score<0.2", "action": "weight", "value": 0.5},
]


@pytest.fixture(params=["metrics first", "samples first"])
def run(request: pytest.FixtureRequest, project: Project, owner: User) -> Run:
    save_guidance(project, owner, RULES, "trainer")
    run = builders.run(project)
    point = MetricPoint(2, METRICS)
    marks = {0: {"guidance": "again, half"}, 1: {"guidance": "half"}, 2: {"guidance": "See the manual."}}
    row = {"prompt": "1+1?", "group": "a"}
    rows = [{**row, "response": f"it is {n}", "score": n / 4, **marks.get(n, {})} for n in range(4)]
    if request.param == "metrics first":
        append_points(run, builders.attempt(run), [point])
    index_file(run, lines(*rows), 2, format="native")
    if request.param == "samples first":
        append_points(run, Step.objects.get().attempt, [point])
    return run


def test_the_page_of_a_step_has_the_version_the_counts_and_the_marks(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_panel(client, f"/runs/{run.uid}/steps/2/")
    assert read_tiles(page)["guidance"] == "2 · 1,024 tok version 1 again 1 half 2 Show them"
    assert page.count(">RULE</span>") == 2
    assert 'href="/settings/math/guidance/?version=1"' in page and 'href="?q=is:guided"' in page
    assert get_panel(client, f"/runs/{run.uid}/steps/2/?q=is:guided").count('<tr id="r-') == 2


def test_a_sample_has_the_rules_that_selected_it_and_what_they_did(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    first, second, third = Sample.objects.order_by("score")[:3]
    page = collapse_spaces(get_panel(client, f"/samples/{first.pk}/", "sample"))
    for name, text in (("is:flagged", "rule again: masked"), ("score&lt;0.2", "rule half: weight 0.5")):
        title = f'href="/settings/math/guidance/?version=1" title="selected by a guidance rule in the training: {name}"'
        assert title in page and text in page
    assert ">RULE<" not in page
    assert "rule half: weight 0.5" in get_panel(client, f"/samples/{second.pk}/", "sample").replace("\n", "")
    assert "rule-mark" not in get_panel(client, f"/samples/{third.pk}/", "sample")
    Step.objects.update(guidance=None)
    page = get_panel(client, f"/samples/{first.pk}/", "sample")
    assert page.count("rule-mark") == 2 and "masked" not in page
