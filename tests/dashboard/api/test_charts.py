"""Charts by API: curves of queries, groups of runs, and the arrangement of a project."""

from __future__ import annotations

from django.contrib.auth.models import User

from rollouts.metrics import append_points
from rollouts.models import ChartArrangement, Project
from rollouts.samples.record import MetricPoint
from tests.dashboard.support.api_client import ApiClient, create_filled_run
from tests.support import builders


def test_the_curve_of_a_query_is_returned_and_a_wrong_query_is_explained(project: Project, mate: User) -> None:
    run, api = create_filled_run(project), ApiClient.with_token(mate, "read")
    curve = api("GET", f"runs/{run.uid}/query-curve/?q=score>=0&measure=count").json()
    assert curve["complete"] and curve["values"] == curve["counts"] and len(curve["steps"]) == curve["total"] >= 1
    wrong = api("GET", f"runs/{run.uid}/query-curve/?q=is:nothing")
    assert wrong.status_code == 400 and "is:nothing" in wrong.json()["error"]["message"]
    assert api("GET", f"runs/{run.uid}/query-curve/?q=x&measure=sum").status_code == 400


def test_a_group_has_mean_and_range_and_only_visible_runs(project: Project, mate: User) -> None:
    api = ApiClient.with_token(mate, "read")
    hidden = builders.run(builders.project("secret"), "hidden", tags=["sweep"])
    runs = [builders.run(project, f"run-{n}", tags=["sweep"]) for n in (1, 2)]
    for number, run in enumerate([*runs, hidden], 1):
        append_points(run, builders.attempt(run), [MetricPoint(1, {"loss": float(number)})])
    assert api("GET", f"runs/{runs[0].uid}/groups/").json() == {"groups": [{"key": "tag:sweep", "runs": 2}]}
    group = api("GET", f"runs/{runs[0].uid}/groups/?key=tag:sweep&name=loss").json()
    assert [run["name"] for run in group["runs"]] == ["run-1", "run-2"]
    assert (group["series"]["loss"][0]["values"], group["series"]["loss"][0]["high"]) == ([1.5], [2])
    assert api("GET", f"runs/{runs[0].uid}/groups/?key=tag:other").status_code == 404


def test_maintainers_arrange_the_charts_and_everybody_sees_it(project: Project, mate: User) -> None:
    lead, viewer = builders.member(project, "lead", "maintainer"), builders.member(project, "viewer", "viewer")
    api, viewer_api = ApiClient.with_token(lead, "read", "admin"), ApiClient.with_token(viewer, "read", "admin")
    start = viewer_api("GET", "projects/math/charts/").json()
    assert start == {"pinned": [], "order": [], "wide": [], "queries": [], "version": 0}
    chart = "share|train||is:truncated"
    changes = {"version": 0, "pinned": ["score", "score", "entropy"], "wide": ["score"], "queries": [chart]}
    assert viewer_api("PATCH", "projects/math/charts/", changes).status_code == 403
    saved = api("PATCH", "projects/math/charts/", changes).json()
    assert saved == {**start, "pinned": ["score", "entropy"], "wide": ["score"], "queries": [chart], "version": 1}
    assert viewer_api("GET", "projects/math/charts/").json() == saved
    outdated = api("PATCH", "projects/math/charts/", {"version": 0, "pinned": []})
    assert outdated.status_code == 412 and "Another user" in outdated.json()["error"]["message"]
    for wrong in (
        {"pinned": "score"},
        {"pinned": ["x"] * 41},
        {"queries": ["share|train||is:nothing"]},
        {"order": [1]},
    ):
        assert api("PATCH", "projects/math/charts/", {"version": 1, **wrong}).status_code == 400, wrong
    assert api("PATCH", "projects/math/charts/", {"pinned": []}).status_code == 400
    assert ChartArrangement.objects.get().version == 1
