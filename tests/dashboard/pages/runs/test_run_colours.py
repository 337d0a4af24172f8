"""A run has one colour, and has it on every page."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from dashboard.pages.findings import svg_chart
from dashboard.pages.run import overlays
from rollouts import findings
from rollouts.metrics import series
from rollouts.models import Project, Run, Sample
from rollouts.models.runs import COLOUR_COUNT
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


@pytest.fixture
def runs(project: Project) -> list[Run]:
    """Two runs that answered one prompt at two steps and logged one metric."""
    return [create_run_with_metrics(project, name) for name in ("one", "two")]


def create_run_with_metrics(project: Project, name: str) -> Run:
    run = builders.run(project, name)
    points = [MetricPoint(step, {"loss": float(step)}, "global_step", 1.0) for step in (1, 2)]
    series.append_points(run, builders.attempt(run, "files"), points)
    for step in (1, 2):
        index_file(run, lines(generation(step=step)), step)
    return run


def find_swatch_colours(client: Client, address: str) -> set[str]:
    return set(re.findall(r'class="swatch (c\d)"', client.get(address).content.decode()))


def find_badge_colours(client: Client, address: str) -> set[str]:
    return set(re.findall(r'<b class="letter (c\d(?: again)?)">', client.get(address).content.decode()))


def test_new_runs_get_the_eight_colours_in_turn_and_keep_them(project: Project) -> None:
    created = [builders.run(project, f"run-{n}") for n in range(COLOUR_COUNT + 1)]
    first = [run.colour for run in created]
    assert sorted(first[:COLOUR_COUNT]) == list(range(1, COLOUR_COUNT + 1)) and first[0] == first[-1]
    created[0].delete()
    assert [Run.objects.get(pk=run.pk).colour for run in created[1:]] == first[1:]


def test_a_run_has_its_swatch_on_every_page(runs: list[Run], reader: Client) -> None:
    own = {f"c{run.colour}" for run in runs}
    key = Sample.objects.all()[0].prompt_key
    assert len(own) == 2
    for address in ("/", "/live/", f"/runs/{runs[0].uid}/?runs={runs[1].uid}", f"/runs/{runs[0].uid}/prompts/{key}/"):
        assert find_swatch_colours(reader, address) == own, address
    for address in (f"/runs/{runs[1].uid}/", f"/runs/{runs[1].uid}/steps/latest/"):
        assert find_swatch_colours(reader, address) == {f"c{runs[1].colour}"}, address


def test_a_compared_step_has_the_colour_of_its_run_whatever_its_letter(runs: list[Run], reader: Client) -> None:
    left, right = (f"c{run.colour}" for run in runs)
    for of in (runs, runs[::-1]):
        cells = ",".join(f"{run.uid}@latest" for run in of)
        assert find_badge_colours(reader, f"/compare/?of={cells}&split=train") == {left, right}
    checkpoints = f"{runs[0].uid}@1,{runs[0].uid}@2"
    shown = find_badge_colours(reader, f"/compare/?of={checkpoints}&split=train")
    assert left in shown and len(shown) == 2  # the second step has a free colour


def test_charts_draw_each_run_in_its_colour(runs: list[Run], reader: Client) -> None:
    for left, right in (runs, runs[::-1]):
        data = reader.get(f"/runs/{left.uid}/charts.json?runs={right.uid}").json()
        assert (data["colour"], data["over"][0]["colour"]) == (left.colour, right.colour)
        held = findings.snapshot_charts([left, right], ["loss"])
        assert [line.colour for line in svg_chart.build_svg_chart(held["curves"]).lines] == [left.colour, right.colour]


def test_a_second_run_of_the_same_colour_gets_a_free_colour(project: Project) -> None:
    created = [builders.run(project, f"run-{n}") for n in range(COLOUR_COUNT + 1)]
    first, last = created[0], created[-1]
    assert first.colour == last.colour
    colours = overlays.assign_colours([first, last])
    assert colours[first.pk] == first.colour != colours[last.pk]
