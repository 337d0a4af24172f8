"""Findings and flags on many samples, as scripts make them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.findings import findings
from rollouts.metrics import series
from rollouts.models import Finding, Label, Project, Run
from rollouts.samples.record import MetricPoint
from tests.dashboard.support.api_client import ApiClient, create_filled_run, get_first_sample
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = create_filled_run(project)
    series.append_points(run, builders.attempt(run), [MetricPoint(step, {"loss": float(step)}) for step in range(3)])
    return run


@pytest.fixture
def api(mate: User) -> ApiClient:
    return ApiClient.with_token(mate, "read", "annotate")


@pytest.fixture
def finding(project: Project, mate: User) -> Finding:
    return findings.create_finding(project, mate, title="Loops")


def test_a_finding_is_created_filled_changed_removed_and_restored(api: ApiClient, run: Run) -> None:
    created = api("POST", "findings/", {"project": "math", "title": "Loops", "note": "late"})
    assert created.status_code == 201
    path = f"findings/{created.json()['id']}/"
    shown = get_first_sample(run)
    exhibits: list[dict[str, Any]] = [
        {"sample": shown.pk, "quotes": ["It is", {"field": "prompt", "start": 0, "end": 4}], "words": "see"},
        {"run": run.uid, "q": "score>0", "step": 1},
        {"run": run.uid, "names": ["loss"]},
    ]
    assert [api("POST", f"{path}exhibits/", data).status_code for data in exhibits] == [201] * 3
    sample, query, chart = api("GET", path).json()["exhibits"]
    assert [quote["text"] for quote in sample["held"]["quotes"]] == ["It is", "What"]
    assert (query["held"]["total"], chart["held"]["curves"][0]["values"]) == (3, [0.0, 1.0, 2.0])
    assert api("PATCH", f"{path}exhibits/{chart['id']}/", {"move": -2, "words": "flat"}).json()["words"] == "flat"
    assert api("DELETE", f"{path}exhibits/{query['id']}/").status_code == 204
    assert [item["kind"] for item in api("GET", path).json()["exhibits"]] == ["chart", "sample"]
    assert api("PATCH", path, {"note": "early", "version": 1}).json()["version"] == 2
    assert api("PATCH", path, {"note": "mine", "version": 1}).status_code == 412
    assert api("DELETE", path).status_code == 204
    assert [api("GET", f"findings/?removed={word}").json()["count"] for word in ("false", "true")] == [0, 1]
    assert api("PATCH", path, {"removed": True}).status_code == 400, "DELETE does that"
    assert api("PATCH", path, {"removed": False, "note": "mine", "version": 1}).status_code == 412
    assert api("GET", path).json()["removed_at"], "nothing of a refused request is stored"
    assert api("PATCH", path, {"removed": False}).json()["removed_at"] is None
    assert api("GET", "findings/?project=math&name=EARL").json()["results"][0]["title"] == "Loops"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ({}, 400),
        ({"sample": "nowhere"}, 404),
        ({"sample": 7}, 400),
        ({"q": "score<", "run": "uid-grpo"}, 400),
        ({"q": "", "run": "uid-grpo", "ordering": "beauty"}, 400),
        ({"q": "", "run": "uid-other"}, 404),
        ({"names": "loss", "run": "uid-grpo"}, 400),
        ({"names": ["none"], "run": "uid-grpo"}, 404),
        ({"names": [], "run": "uid-grpo"}, 400),
        ({"names": ["loss"], "run": "uid-grpo", "runs": [1]}, 400),
        ({"names": ["loss"], "run": "uid-grpo", "words": 5}, 400),
        ({"colour": "red"}, 400),
    ],
)
def test_evidence_that_cannot_be_shown_is_refused(
    api: ApiClient, run: Run, finding: Finding, data: dict[str, Any], status: int
) -> None:
    assert api("POST", f"findings/{finding.pk}/exhibits/", data).status_code == status
    assert finding.exhibits.count() == 0


@pytest.mark.parametrize(
    "quotes", ["text", ["nowhere said"], [{"field": "response"}], [{"field": "x", "start": 0, "end": 1}], [5]]
)
def test_a_quote_must_be_in_the_sample(api: ApiClient, run: Run, finding: Finding, quotes: Any) -> None:
    data = {"sample": get_first_sample(run).pk, "quotes": quotes}
    assert api("POST", f"findings/{finding.pk}/exhibits/", data).status_code == 400


def test_a_finding_shows_nothing_of_another_project(api: ApiClient, run: Run, mate: User, finding: Finding) -> None:
    other = builders.project("other")
    other.memberships.create(user=mate, role="annotator")
    other_finding, other_run = findings.create_finding(other, mate, title="Theirs"), builders.run(other, "theirs")
    for evidence in (
        {"sample": get_first_sample(run).pk},
        {"run": run.uid, "q": ""},
        {"run": run.uid, "names": ["loss"]},
    ):
        refused = api("POST", f"findings/{other_finding.pk}/exhibits/", evidence)
        assert (refused.status_code, other_finding.exhibits.count()) == (400, 0)
        assert "belongs to other, grpo does not" in refused.content.decode()
    data = {"run": run.uid, "names": ["loss"], "runs": [other_run.uid]}
    assert api("POST", f"findings/{finding.pk}/exhibits/", data).status_code == 400


def test_only_annotators_with_the_scope_write_and_strangers_get_404(
    run: Run, project: Project, mate: User, stranger: User, finding: Finding
) -> None:
    exhibit = findings.add_query_evidence(finding, run, mate)
    finding_path = f"findings/{finding.pk}/"
    writes = [
        ("POST", "findings/", {"project": "math", "title": "x"}),
        ("PATCH", finding_path, {"title": "x"}),
        ("DELETE", finding_path, None),
        ("POST", f"{finding_path}exhibits/", {"run": run.uid, "q": ""}),
        ("PATCH", f"{finding_path}exhibits/{exhibit.pk}/", {"words": "x"}),
        ("DELETE", f"{finding_path}exhibits/{exhibit.pk}/", None),
    ]
    viewer = ApiClient.with_token(builders.member(project, "vera", "viewer"), "read", "annotate")
    reader, nobody = ApiClient.with_token(mate, "read"), ApiClient.with_token(stranger, "read", "annotate")
    for caller, read_status, write_status in ((viewer, 200, 403), (reader, 200, 403), (nobody, 404, 404)):
        assert caller("GET", finding_path).status_code == read_status
        for method, path, data in writes:
            assert caller(method, path, data).status_code == write_status, (method, path)


def test_a_comment_that_changed_since_it_was_read_is_not_overwritten(
    api: ApiClient, run: Run, mate: User, finding: Finding
) -> None:
    path = f"findings/{finding.pk}/exhibits/{findings.add_query_evidence(finding, run, mate).pk}/"
    assert api("PATCH", path, {"words": "first", "began": ""}).json()["words"] == "first"
    assert api("PATCH", path, {"words": "second", "began": ""}).status_code == 412
    assert api("PATCH", path, {"words": "second", "began": 5}).status_code == 400
    assert api("PATCH", path, {"words": "third"}).json()["words"] == "third"


def test_many_samples_are_flagged_all_or_none(api: ApiClient, run: Run) -> None:
    ids = [row["id"] for row in api("GET", f"samples/?run={run.uid}").json()["results"]]
    response = api("POST", "flags/", {"samples": ids, "reason": "other"})
    assert (response.status_code, response.json()) == (200, {"samples": 8, "changed": 8})
    assert api("POST", "flags/", {"samples": ids, "reason": "other"}).json()["changed"] == 0
    for wrong, status in (([ids[0], "nowhere"], 404), ([], 400), ("x", 400), ([5], 400)):
        assert api("POST", "flags/", {"samples": wrong}).status_code == status
    assert Label.objects.filter(withdrawn_at=None).count() == 8
