"""Labels and rubrics in the API, in full samples and in exports."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.contrib.auth.models import User

from rollouts import queues
from rollouts.labels import save_rubric
from rollouts.models import Label, Project, Run
from rollouts.query import find_samples
from rollouts.samples import export_jsonl, export_parquet
from tests.dashboard.support.api_client import ApiClient, create_filled_run, get_first_sample
from tests.rollouts.labels.test_rubric import ROWS
from tests.support import builders


@pytest.fixture
def run(project: Project, owner: User, mate: User) -> Run:
    save_rubric(project, owner, ROWS, "Be fair.")
    return create_filled_run(project)


def test_a_label_is_stored_replaced_listed_and_withdrawn(run: Run, mate: User, owner: User) -> None:
    pk, mina, olga = get_first_sample(run).pk, ApiClient.signed_in(mate), ApiClient.signed_in(owner)
    response = mina("POST", "labels/", {"sample": pk, "name": "quality", "value": 3, "rationale": "short"})
    label = response.json()["label"]
    assert (response.status_code, response.json()["changed"]) == (201, 1)
    assert (label["value"], label["author"], label["user"], label["rubric"]) == (3, "mina", "mina", 1)
    again = mina("POST", "labels/", {"sample": pk, "name": "quality", "value": 4})
    assert (again.json()["label"]["id"], again.json()["label"]["value"]) == (label["id"], 4)
    assert mina("POST", "labels/", {"sample": pk, "name": "quality", "value": 4}).status_code == 200
    (earlier,) = mina("GET", f"labels/{label['id']}/history/").json()["results"]
    assert (earlier["value"], earlier["rationale"], earlier["rubric"]) == (3, "short", 1)

    code = {"name": "correct", "value": False, "source": "code", "author": "grade"}
    assert olga("POST", "labels/", {"samples": [pk], **code}).json()["label"]["source"] == "code"
    queries = (f"sample={pk}", "source=code", "author=mina", "name=style", f"run={run.uid}&step=1&split=train")
    listed = {query: [row["name"] for row in mina("GET", f"labels/?{query}").json()["results"]] for query in queries}
    both = ["correct", "quality"]
    assert list(listed.values()) == [both, ["correct"], ["quality"], [], both]
    refused = mina("PATCH", f"labels/{Label.objects.get(source='code').pk}/", {"withdrawn": True})
    assert refused.status_code == 403
    withdrawn = olga("PATCH", f"labels/{label['id']}/", {"withdrawn": True}).json()
    assert withdrawn["withdrawn_at"]
    assert [row["name"] for row in mina("GET", f"labels/?sample={pk}").json()["results"]] == ["correct"]
    assert mina("GET", f"labels/?sample={pk}&withdrawn=true").json()["count"] == 2


def test_a_list_is_stored_as_a_whole_or_not_at_all(run: Run, mate: User) -> None:
    mina = ApiClient.signed_in(mate)
    ids = list(find_samples(run).samples.values_list("pk", flat=True))[:2]
    rows: list[dict[str, Any]] = [
        {"sample": ids[0], "name": "correct", "value": True},
        {"sample": ids[1], "name": "errors", "value": ["sum"], "start": 0, "end": 2},
    ]
    assert mina("POST", "labels/", {"labels": rows}).json() == {"samples": 2, "changed": 2}
    wrong = mina("POST", "labels/", {"labels": [{**rows[0], "value": False}, {**rows[1], "value": ["no"]}]})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "errors")
    assert Label.objects.get(name="correct").value is True
    cleared = mina("POST", "labels/", {"sample": ids[0], "name": "correct", "value": None}).json()
    assert cleared["label"]["withdrawn_at"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "value"),
    ({"sample": "{sample}", "name": "quality"}, "value"),
    ({"sample": "{sample}", "name": "quality", "value": 9}, "quality"),
    ({"sample": "{sample}", "name": "colour", "value": 1}, "name"),
    ({"sample": "{sample}", "name": "quality", "value": 3, "rationale": 5}, "rationale"),
    ({"sample": "{sample}", "name": "quality", "value": 3, "source": "robot"}, "source"),
    ({"sample": "{sample}", "name": "errors", "value": ["sum"], "start": "x", "end": 1}, "start"),
    ({"samples": [], "name": "quality", "value": 3}, "samples"),
    ({"labels": []}, "labels"),
    ({"labels": [{"sample": "{sample}", "name": "quality", "value": 3, "colour": 1}]}, "colour"),
]


def test_a_wrong_label_is_refused_with_its_field(run: Run, mate: User) -> None:
    for body, field in WRONG:
        text = json.dumps(body).replace("{sample}", get_first_sample(run).pk)
        response = ApiClient.signed_in(mate)("POST", "labels/", json.loads(text))
        assert (response.status_code, response.json()["error"]["field"]) == (400, field), response.json()


def test_labels_need_the_annotator_role_and_the_annotate_scope(run: Run, project: Project, mate: User) -> None:
    viewer = builders.member(project, "vera", "viewer")
    body = {"sample": get_first_sample(run).pk, "name": "quality", "value": 3}
    callers = {
        "viewer": ApiClient.signed_in(viewer),
        "read token": ApiClient.with_token(mate, "read"),
        "annotate token": ApiClient.with_token(mate, "annotate"),
    }
    statuses = {name: caller("POST", "labels/", body).status_code for name, caller in callers.items()}
    assert statuses == {"viewer": 403, "read token": 403, "annotate token": 201}
    assert callers["viewer"]("GET", "labels/").json()["count"] == 1


def test_a_blind_reviewer_cannot_store_a_label_of_a_model(run: Run, mate: User, owner: User) -> None:
    pk, mina = get_first_sample(run).pk, ApiClient.signed_in(mate)
    judged = {"sample": pk, "name": "correct", "value": True, "source": "model", "author": "judge"}
    assert ApiClient.signed_in(owner)("POST", "labels/", judged).status_code == 201
    settings = {"name": "blind", "runs": [run], "is_blind": True}
    queue = queues.create_queue(run.project, owner, settings)
    for value in (True, False, None):
        refused = mina("POST", "labels/", {**judged, "value": value})
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "source")
        assert f"sample {pk} " in refused.json()["error"]["message"]
    assert mina("POST", "labels/", {"sample": pk, "name": "correct", "value": False}).status_code == 201
    assert [row["author"] for row in mina("GET", "labels/").json()["results"]] == ["mina"]
    queues.close_queue(queue, owner)
    assert mina("POST", "labels/", judged).json()["changed"] == 0


def test_a_rubric_is_read_and_saved_with_its_base_version(run: Run, owner: User, mate: User) -> None:
    path, olga = "projects/math/rubric/", ApiClient.signed_in(owner)
    current = ApiClient.signed_in(mate)("GET", path).json()
    assert (current["version"], current["guidelines"], len(current["questions"])) == (1, "Be fair.", len(ROWS))
    body = {"questions": current["questions"][:2], "base_version": 1}
    assert ApiClient.signed_in(mate)("PUT", path, body).status_code == 403
    saved = olga("PUT", path, body).json()
    assert (saved["version"], [row["version"] for row in saved["versions"]]) == (2, [2, 1])
    assert olga("PUT", path, body).status_code == 412
    wrong = olga("PUT", path, {"questions": [{"key": "x", "kind": "y"}], "base_version": 2})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "questions.0.kind")
    assert olga("GET", f"{path}?version=1").json()["questions"] == current["questions"]
    assert [row["key"] for row in olga("GET", f"{path}?version=0").json()["questions"]] == ["review"]
    assert olga("GET", f"{path}?version=7").status_code == 404


def test_full_samples_and_exports_have_the_current_labels(run: Run, mate: User) -> None:
    sample, mina = get_first_sample(run), ApiClient.signed_in(mate)
    for name, value in (("quality", 3), ("quality", 4), ("style", "bad"), ("review", "ok"), ("style", None)):
        mina("POST", "labels/", {"sample": sample.pk, "name": name, "value": value})
    builders.flag(sample.pk, mate, reason="other", label="unsure", text="hm")
    shown = [("quality", 4, "", 1), ("review", "ok", "", 0), ("flag.other", "unsure", "hm", 0)]

    def list_values(labels: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(row["name"], row["value"], row["rationale"], row["rubric"]) for row in labels]

    assert list_values(mina("GET", f"samples/{sample.pk}/").json()["labels"]) == shown
    samples = find_samples(run).samples
    rows = [json.loads(row) for row in b"".join(export_jsonl(samples)).splitlines()]
    assert {row["id"]: list_values(row["labels"]) for row in rows if row["labels"]} == {sample.pk: shown}
    table = pq.read_table(io.BytesIO(b"".join(export_parquet(samples)))).to_pylist()
    assert {row["id"]: list_values(json.loads(row["labels"])) for row in table if row["labels"] != "[]"} == {
        sample.pk: shown
    }
