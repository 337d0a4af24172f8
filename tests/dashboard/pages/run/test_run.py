"""A run's overview: charts over steps or time with overlaid runs, and the heatmap of prompts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.pages.run import chart_data
from rolloutdeck.protocol import wire
from rollouts.lib.cache import NewestCache
from rollouts.metrics import chart_layout, series
from rollouts.models import Artifact, Project, Run, Step
from rollouts.prompts import heatmap
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import index_file, lines, push
from tests.support import builders
from tests.support.html import collapse_spaces


def create_run_with_metrics(project: Project, name: str, rate: float) -> Run:
    run = builders.run(project, name)
    points = [MetricPoint(step, {"loss": step * rate, "lr": rate}, "global_step", 3600.0 * step) for step in (1, 2, 3)]
    series.append_points(run, builders.attempt(run, name), points)
    return run


@pytest.fixture
def runs(project: Project) -> list[Run]:
    return [create_run_with_metrics(project, "one", 1.0), create_run_with_metrics(project, "two", 2.0)]


def test_another_run_is_overlaid_with_its_own_points(runs: list[Run], reader: Client) -> None:
    left, right = runs
    data = reader.get(f"/runs/{left.uid}/charts.json?runs={right.uid}").json()
    assert data["curves"]["loss"][0]["values"] == [1, 2, 3]
    (overlaid,) = data["over"]
    assert (overlaid["uid"], overlaid["name"]) == (right.uid, "two")
    assert overlaid["curves"]["loss"][0]["values"] == [2, 4, 6]


def test_a_metric_that_differs_between_the_runs_is_not_constant(runs: list[Run], reader: Client) -> None:
    left, right = runs
    assert reader.get(f"/runs/{left.uid}/charts.json").json()["constant"] == {"lr": 1}
    assert reader.get(f"/runs/{left.uid}/charts.json?runs={right.uid}").json()["constant"] == {}


def test_a_run_without_access_is_not_overlaid(runs: list[Run], reader: Client) -> None:
    hidden = create_run_with_metrics(builders.project("secret"), "unseen-run", 3.0)
    for words in (hidden.uid, "nobody", runs[0].uid, "%00", ",,", "a" * 3000):
        response = reader.get(f"/runs/{runs[0].uid}/charts.json?runs={words}")
        assert response.json()["over"] == [], words
        assert ">unseen-run<" not in reader.get(f"/runs/{runs[0].uid}/?runs={words}").content.decode()


def test_charts_change_when_an_overlaid_run_changes(runs: list[Run], reader: Client) -> None:
    url = f"/runs/{runs[0].uid}/charts.json?runs={runs[1].uid}"
    etag = reader.get(url).headers["ETag"]
    assert reader.get(url, headers={"If-None-Match": etag}).status_code == 304
    Run.objects.filter(pk=runs[1].pk).update(version=99)
    assert reader.get(url, headers={"If-None-Match": etag}).status_code == 200


def test_charts_are_cached_up_to_a_number_of_bytes(
    runs: list[Run], reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [f"/runs/{run.uid}/charts.json" for run in runs]
    rendered = [reader.get(url).content for url in addresses]
    created: list[Run] = []
    original_build = chart_data.ChartSource.build

    def build(self: chart_data.ChartSource, *rest: str, **named: bool) -> object:
        created.append(self.run)
        return original_build(self, *rest, **named)

    monkeypatch.setattr(chart_data.ChartSource, "build", build)
    monkeypatch.setattr(chart_data, "chart_cache", NewestCache(len(rendered[0]) + 1, len))
    assert [reader.get(url).content for url in (*addresses, *reversed(addresses))] == [*rendered, *reversed(rendered)]
    assert created == [*runs, runs[0]]


def test_charts_over_time_have_the_hour_of_each_point(runs: list[Run], reader: Client) -> None:
    data = reader.get(f"/runs/{runs[0].uid}/charts.json?x=time").json()
    assert data["curves"]["loss"][0]["hours"] == [0, 1, 2]
    assert data["curves"]["loss"][0]["steps"] == [1, 2, 3]


def test_metrics_without_times_are_named_or_drawn_over_steps(runs: list[Run], reader: Client, project: Project) -> None:
    imported = builders.run(project, "imported")
    points = [MetricPoint(step, {"loss": step * 1.0}, "global_step", None) for step in (1, 2)]
    series.append_points(imported, builders.attempt(imported), points)
    data = reader.get(f"/runs/{imported.uid}/charts.json?x=time").json()
    assert (data["axis"], data["untimed"]) == ("step", ["loss"])
    assert data["curves"]["loss"][0]["steps"] == [1, 2]
    extra = [MetricPoint(step, {"other": step * 1.0}, "iteration", None) for step in (1, 2)]
    series.append_points(runs[0], builders.attempt(runs[0], "one"), extra)
    data = reader.get(f"/runs/{runs[0].uid}/charts.json?x=time").json()
    assert (data["axis"], data["untimed"]) == ("time", ["other"])


def test_runs_of_one_colour_get_different_colours_in_the_same_charts(project: Project, reader: Client) -> None:
    many = [create_run_with_metrics(project, f"run-{number}", 1.0 + number) for number in range(9)]
    first, same = many[0], many[8]
    assert first.colour == same.colour
    data = reader.get(f"/runs/{first.uid}/charts.json?runs={same.uid}").json()
    assert data["over"][0]["colour"] != data["colour"] == first.colour


def test_a_group_of_runs_is_a_line_with_a_band_or_its_single_runs(project: Project, reader: Client) -> None:
    runs = [create_run_with_metrics(project, f"ppo-s{seed}", float(seed)) for seed in (1, 2, 3)]
    for run in runs[:2]:
        Run.objects.filter(pk=run.pk).update(tags=["sweep"])
    path = f"/runs/{runs[0].uid}"
    data = reader.get(f"{path}/charts.json?groups=tag:sweep&runs={runs[2].uid}").json()
    single, group = data["over"]
    assert (single["uid"], group["uid"], group["name"], data["grouped"]) == (runs[2].uid, "tag:sweep", "sweep", True)
    assert [member["name"] for member in group["members"]] == ["ppo-s1", "ppo-s2"]
    (curve,) = group["curves"]["loss"]
    assert (curve["values"], curve["low"], curve["high"]) == ([1.5, 3, 4.5], [1, 2, 3], [2, 4, 6])
    assert group["colour"] == data["colour"] != single["colour"]
    for query in ("band=0", "x=time"):
        lines = reader.get(f"{path}/charts.json?groups=tag:sweep&{query}").json()
        assert [over["name"] for over in lines["over"]] == ["ppo-s2"] and not lines["grouped"], query
    page = reader.get(f"{path}/?groups=tag:sweep").content.decode()
    assert "2 runs" in page and "band=0" in page
    offers = reader.get(f"{path}/", headers={"HX-Request": "true", "HX-Target": "overlay"}).content.decode()
    assert 'href="?groups=tag:sweep"' in offers


def test_the_picker_offers_runs_and_removes_them_again(runs: list[Run], reader: Client) -> None:
    left, right = runs
    overlay = {"HX-Request": "true", "HX-Target": "overlay"}
    assert (
        f'href="?m=kl&amp;runs={right.uid}"' in reader.get(f"/runs/{left.uid}/?m=kl", headers=overlay).content.decode()
    )
    assert 'href="?m=kl"' in reader.get(f"/runs/{left.uid}/?m=kl&runs={right.uid}", headers=overlay).content.decode()


def test_a_tag_with_odd_characters_is_one_value_of_the_links_that_keep_the_url(runs: list[Run], reader: Client) -> None:
    """A script puts `data-set` into the current URL."""
    left, right = runs
    Run.objects.filter(pk__in=[left.pk, right.pk]).update(tags=["50% a&b", "sweep"])
    path, overlay = f"/runs/{left.uid}/", {"HX-Request": "true", "HX-Target": "overlay"}
    page = reader.get(f"{path}?groups=tag:sweep,tag:50%25%20a%26b").content.decode()
    assert 'data-set="groups=tag%3A50%25%20a%26b"' in page
    offers = reader.get(f"{path}?groups=tag:sweep", headers=overlay).content.decode()
    assert 'data-set="groups=tag%3Asweep%2Ctag%3A50%25%20a%26b"' in offers
    assert f'data-set="runs={right.uid}"' in offers


def test_a_fan_keeps_its_three_lines_although_one_is_constant() -> None:
    curve = {"attempt": "a", "number": 1, "step_kind": "global_step", "steps": [1, 2]}
    curves = {
        name: [{**curve, "values": [0.0, float(index)]}] for index, name in enumerate(chart_layout.SCORE_FAN_METRICS)
    }
    layout = chart_layout.arrange_charts(curves, [curves])  # type: ignore[list-item]
    assert [(chart.names, chart.kind) for chart in layout.default] == [(chart_layout.SCORE_FAN_METRICS, "fan")]
    still = {name: [{**curve, "values": [1.0, 1.0]}] for name in chart_layout.SCORE_FAN_METRICS}
    assert chart_layout.arrange_charts(still, [still]).default == []  # type: ignore[list-item]


def test_score_curves_are_the_percentiles_of_the_samples(project: Project, reader: Client) -> None:
    run = builders.run(project)
    for step in (1, 2):
        index_file(run, lines(*({"prompt": f"{n}", "response": f"{n}", "score": n * step} for n in range(11))), step)
    result = reader.get(f"/runs/{run.uid}/charts.json").json()["curves"]
    assert [result[name][0]["values"] for name in chart_layout.SCORE_FAN_METRICS] == [[1, 2], [5, 10], [9, 18]]


def test_a_point_of_a_chart_leads_to_the_nearest_step_with_samples(project: Project, reader: Client) -> None:
    run = builders.run(project)
    assert reader.get(f"/runs/{run.uid}/nearest/5/").headers["Location"] == f"/runs/{run.uid}/"
    for step in (10, 20):
        index_file(run, lines({"prompt": "p", "response": f"{step}", "score": 1}), step)
    index_file(run, lines({"prompt": "p", "response": "e", "score": 1}), 12, split="eval", source="eval/12")
    run.refresh_from_db()
    for requested, result in (("1", "10"), ("14", "10"), ("16", "20"), ("99", "20"), ("%00", "10"), ("9" * 40, "10")):
        assert (
            reader.get(f"/runs/{run.uid}/nearest/{requested}/").headers["Location"]
            == f"/runs/{run.uid}/steps/{result}/"
        ), requested
    for step in (-9, -3):
        index_file(run, lines({"prompt": "p", "response": f"{step}", "score": 1}), step)
    assert reader.get(f"/runs/{run.uid}/nearest/-8/").headers["Location"] == f"/runs/{run.uid}/steps/-9/"
    evaluated = reader.get(f"/runs/{run.uid}/nearest/99/?split=eval").headers["Location"]
    assert evaluated == f"/runs/{run.uid}/steps/12/?split=eval"


ASKED = "system\nBe brief.\nuser\n<b>Why {}?\nassistant\n"


# --- prompts over steps -----------------------------------------------------------------------------------------------


def create_evaluated_run(project: Project) -> Run:
    run = builders.run(project, "validated")
    for step in (1, 2):
        rows = [
            {"prompt": ASKED.format(n), "response": f"{step}", "score": float(n < step), "acc": int(n < step)}
            for n in range(3)
        ]  # fmt: skip
        index_file(run, lines(*rows), step, split="eval", source=f"eval/{step}", format="native")
    run.refresh_from_db()
    return run


def test_a_waiting_dump_is_reported_after_a_while(project: Project, reader: Client) -> None:
    """The page is sent again although nothing else of the run has changed."""
    run = builders.run(project)
    push(run, lines({"prompt": "1+1=", "response": "2", "score": 1.0}))
    fresh = reader.get(f"/runs/{run.uid}/")
    assert fresh.status_code == 200 and "waiting to be indexed" not in fresh.content.decode()
    run.dumps.update(received_at=timezone.now() - timedelta(minutes=1))
    late = reader.get(f"/runs/{run.uid}/", headers={"If-None-Match": fresh["ETag"]})
    assert late.status_code == 200 and "1 dump waiting to be indexed" in late.content.decode()


def test_unsafe_files_are_listed_on_the_page_of_their_run(project: Project, reader: Client) -> None:
    run = builders.run(project)
    where = {"attempt": builders.attempt(run), "key": "0" * 64, "role": wire.ARTIFACT_ROLES[0], "step": 4}
    run.artifacts.create(**where, state=Artifact.State.UNSAFE, message="gen_batch.dp: it names <os.system>")
    rendered = reader.get(f"/runs/{run.uid}/").content.decode()
    assert "Cannot be replayed" in rendered and "step 4: gen_batch.dp: it names &lt;os.system&gt;" in rendered


def test_the_heatmap_shows_when_each_prompt_was_solved_and_links_to_the_samples(
    project: Project, reader: Client
) -> None:
    run = create_evaluated_run(project)
    page = reader.get(f"/runs/{run.uid}/?show=prompts").content.decode()
    assert "never solved <b>1</b>" in page
    assert "always solved <b>1</b>" in page
    assert "share of correct responses; solved: at least half" in page and ">first solved at step</th>" in page
    assert "&lt;b&gt;Why 2?" in page
    assert "Be brief" not in page
    link = page.split('<td class="h3"><a href="')[1].split('"')[0].replace("&amp;", "&")
    assert reader.get(link).status_code == 200
    assert "1</b>" in reader.get(link).content.decode()


def test_the_heatmap_is_filtered_by_whether_prompts_were_solved(project: Project, reader: Client) -> None:
    run = create_evaluated_run(project)
    page = reader.get(f"/runs/{run.uid}/?show=prompts&only=never").content.decode()
    assert "Why 2?" in page
    assert "Why 0?" not in page


def test_the_heatmap_of_many_steps_says_how_many_of_them_it_shows(
    project: Project, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatmap, "MAX_HEATMAP_STEPS", 2)
    run = create_evaluated_run(project)
    row = {"prompt": ASKED.format(0), "response": "3", "score": 1.0}
    index_file(run, lines(row), 3, split="eval", source="eval/3", format="native")
    page = reader.get(f"/runs/{run.uid}/?show=prompts")
    assert page.status_code == 200
    assert "2 of 3 steps" in page.content.decode()


def test_no_parameter_breaks_the_overview(project: Project, reader: Client) -> None:
    run = create_evaluated_run(project)
    for query in (
        "show=prompts&split=x",
        "show=prompts&only=%00&order=zz&start=-1",
        "show=prompts&start=9999999",
        "show=x",
        "x=%00",
        "m=(",
    ):
        assert reader.get(f"/runs/{run.uid}/?{query}").status_code == 200, query


def test_a_run_without_repeated_prompts_says_what_the_heatmap_needs(project: Project, reader: Client) -> None:
    run = builders.run(project)
    Step.objects.create(run=run, attempt=builders.attempt(run), split="train", step=1)
    assert "prompt was sampled at more than one step" in reader.get(f"/runs/{run.uid}/?show=prompts").content.decode()


def test_guidance_is_shown_for_each_step_with_its_version_and_counts(project: Project, reader: Client) -> None:
    run = create_run_with_metrics(project, "guided", 1.0)
    assert "guidance-steps" not in reader.get(f"/runs/{run.uid}/").content.decode()
    names = ("guidance/version", "guidance/samples", "guidance/tokens", "guidance/rule/bad", "guidance/rule/skip")
    for step, values in {1: (1, 0, 0, 0, 0), 2: (2, 3, 1200, 3, 0)}.items():
        points = [MetricPoint(step, dict(zip(names, values, strict=True)))]
        series.append_points(run, builders.attempt(run, "guided"), points)
    Run.objects.filter(pk=run.pk).update(version=run.version + 1)
    html = reader.get(f"/runs/{run.uid}/").content.decode()
    text = " ".join(collapse_spaces(html[html.index("guidance-steps") :]).split())
    assert "version 2 · 3 samples affected · in 1 of 2 steps" in text
    assert "/settings/math/guidance/?version=1" in html and "1,200" in text
    assert "<code>bad</code>3" in text and "<code>skip" not in text
