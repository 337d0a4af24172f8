"""Review queues, as scripts and the command line use them; and what a blind queue tells a reviewer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from rollouts.errors import StorageUnavailableError
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import Label, Project, Queue, QueueItem, Run, Sample
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.queues.conftest import QUESTIONS
from tests.rollouts.support.query_rows import push
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, "secret-run")
    rows = [
        {"prompt": "Why?", "response": f"text {n}", "group": "secret-group", "index": n, "score": 0.7654321,
         "ground_truth": "secret-truth", "data_source": "secret-source", "hint": "secret-extra",
         "rewards": {"secret-part": 1.0}}
        for n in range(4)
    ]  # fmt: skip
    push(run, rows, step=770077)
    return run


@pytest.fixture
def lead(project: Project) -> ApiClient:
    user = builders.member(project, "lena", "maintainer")
    save_rubric(project, user, QUESTIONS)
    return ApiClient.with_token(user, "read", "annotate")


@pytest.fixture
def ann(project: Project) -> ApiClient:
    return ApiClient.with_token(builders.member(project, "ann", "annotator"), "read", "annotate")


def create(lead: ApiClient, run: Run, **settings: Any) -> int:
    body = {"project": "math", "name": "check", "runs": [run.uid], **settings}
    response = lead("POST", "queues/", body)
    assert response.status_code == 201, response.json()
    return int(response.json()["id"])


def test_a_queue_from_its_creation_to_its_end(lead: ApiClient, ann: ApiClient, run: Run) -> None:
    wanted = {"project": "math", "name": "check", "runs": [run.uid], "selection": "random", "count": 2}
    assert lead("POST", "queues/", {**wanted, "dry_run": True}).json() == {
        "matched": 4, "items": 2, "strata": [{"stratum": "", "matched": 4, "drawn": 2}],
    }  # fmt: skip
    queue = create(lead, run, selection="random", count=2)
    here = f"queues/{queue}/"
    assert [row["id"] for row in ann("GET", "queues/?state=mine").json()["results"]] == [queue]
    item = ann("POST", f"{here}next/", {}).json()["item"]
    assert (item["run"], item["step"], item["ground_truth"]) == (run.uid, 770077, "secret-truth")
    assert not {"stratum", "probability"} & item.keys(), "they would tell which items are known"
    assert [question["key"] for question in item["questions"]] == ["correct", "quality"]
    answers = f"{here}items/{item['id']}/answers/"
    draft = {"answers": {"quality": {"value": 2}}, "draft": True}
    assert ann("PUT", answers, draft).json()["done"] is False
    assert ann("POST", f"{here}next/", {}).json()["item"]["entered"] == {"quality": {"value": 2}}
    assert ann("PUT", answers, {"answers": {"quality": {"value": 2}}}).json()["error"]["field"] == "correct"
    saved = ann("PUT", answers, {"answers": {"correct": {"value": False, "rationale": "why"}}, "seconds": 3.5})
    assert saved.json() == {"item": item["id"], "done": True}
    second = ann("POST", f"{here}next/", {"after": item["position"]}).json()
    assert (second["item"]["position"], second["own"]["done"]) == (1, 1)
    assert ann("POST", f"{here}items/{second['item']['id']}/skip/", {}).status_code == 200
    assert ann("POST", f"{here}next/", {}).json()["item"] is None
    listed = lead("GET", f"{here}items/").json()["results"]
    assert listed[0]["answers"] == {"correct": {"ann": False}} and listed[0]["probability"] == 0.5
    decision = {"question": "correct", "value": True, "reason": "the answer is right"}
    assert lead("POST", f"{here}items/{item['id']}/decide/", decision).status_code == 200
    assert lead("GET", f"{here}items/").json()["results"][0]["decided"] == {"correct": True}
    shown = lead("GET", here).json()
    assert (shown["answers_done"], [person["user"] for person in shown["people"]]) == (1, ["ann"])
    assert ann("POST", f"{here}undo/", {}).json()["position"] == 0
    assert lead("PATCH", here, {"closed": True}).json()["closed_at"]
    assert ann("POST", f"{here}next/", {}).status_code == 409
    assert ann("GET", "queues/").json()["count"] == 0


def test_who_may_do_what(lead: ApiClient, ann: ApiClient, run: Run, project: Project) -> None:
    queue = create(lead, run, reviewers=["ann"])
    here = f"queues/{queue}/"
    bob = ApiClient.with_token(builders.member(project, "bob", "annotator"), "read", "annotate")
    vera = ApiClient.with_token(builders.member(project, "vera", "viewer"), "read", "annotate")
    stranger = ApiClient.with_token(User.objects.create_user("mallory"), "read", "annotate")
    item = ann("POST", f"{here}next/", {}).json()["item"]["id"]
    for api, status in ((bob, 403), (vera, 403), (stranger, 404)):
        assert api("POST", f"{here}next/", {}).status_code == status
        assert api("PUT", f"{here}items/{item}/answers/", {"answers": {}}).status_code == status
        assert api("POST", f"{here}undo/", {}).status_code == status
    for api, status in ((ann, 403), (vera, 403), (stranger, 404)):
        assert api("GET", f"{here}items/").status_code == status
        assert api("PATCH", here, {"closed": True}).status_code == status
        assert api("POST", "queues/", {"project": "math", "name": "x", "runs": [run.uid]}).status_code == status
    assert "people" not in ann("GET", here).json() and "people" in lead("GET", here).json()
    assert stranger("GET", "queues/?state=all").json()["count"] == 0


@pytest.mark.parametrize("state", ["open", "mine"])
def test_many_queues_are_listed_with_as_many_queries_as_one(
    lead: ApiClient, ann: ApiClient, run: Run, state: str
) -> None:
    counts = []
    for number in range(4):
        create(lead, run, name=f"queue {number}", is_blind=True, reviewers=["ann"])
        Queue.objects.update(rubric=None)
        with CaptureQueriesContext(connection) as captured:
            rows = ann("GET", f"queues/?state={state}").json()["results"]
        counts.append(len(captured))
        assert len(rows) == number + 1 and {row["items"] for row in rows} == {4} and "q" not in rows[0]
    assert len(set(counts[1:])) == 1


def test_an_item_of_a_run_in_the_trash_is_not_found(lead: ApiClient, ann: ApiClient, run: Run) -> None:
    here = f"queues/{create(lead, run)}/"
    item = ann("POST", f"{here}next/", {}).json()["item"]["id"]
    Run.objects.update(deleted_at=timezone.now())
    answers = {"answers": {"correct": {"value": True}}}
    assert ann("PUT", f"{here}items/{item}/answers/", answers).status_code == 404
    assert ann("POST", f"{here}next/", {}).json()["item"] is None
    page = ApiClient.signed_in(User.objects.get(username="ann"))
    assert page("GET", f"/queues/{here.split('/')[1]}/review/?item={item}").status_code == 404
    assert not Label.objects.exists()


@pytest.mark.parametrize("unit", ["sample", "group"])
def test_a_blind_queue_tells_a_reviewer_nothing(lead: ApiClient, ann: ApiClient, run: Run, unit: str) -> None:
    queue = create(lead, run, unit=unit, is_blind=True, q="score>0.5 source:secret-source")
    here = f"queues/{queue}/"
    answers = [ann("GET", "queues/"), ann("GET", here), ann("POST", f"{here}next/", {})]
    item = answers[-1].json()["item"]
    assert item["responses"][0]["response"].startswith("text")
    body = {"order": [[1, 2], [4, 3]]} if unit == "group" else {"answers": {"correct": {"value": True}}}
    answers += [
        ann("PUT", f"{here}items/{item['id']}/answers/", body),
        ann("POST", f"{here}undo/", {}),
        ann("POST", f"{here}next/", {"item": item["id"]}),
        ann("PUT", f"{here}items/{item['id']}/answers/", {"answers": {}, "order": []}),
        ann("GET", f"{here}items/"),
    ]
    sent = json.dumps([answer.json() for answer in answers])
    samples = list(run.steps.get().rows.values_list("pk", flat=True))
    for secret in ("secret", "0.765", "770077", run.uid, *samples):
        assert secret not in sent, secret
    assert lead("GET", here).json()["q"].startswith("score>0.5")


@pytest.mark.parametrize("is_blind", [True, False])
def test_only_outside_of_a_blind_queue_an_unreadable_text_is_named(
    lead: ApiClient, ann: ApiClient, run: Run, is_blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(samples: list[Sample]) -> None:
        raise StorageUnavailableError(f"Cannot read the sample texts of dump 7: bodies/{run.uid}/train.")

    monkeypatch.setattr("rollouts.queues.content.load_bodies", fail)
    queue = create(lead, run, is_blind=is_blind)
    answer = ann("POST", f"queues/{queue}/next/", {})
    page = ApiClient.signed_in(User.objects.get(username="ann"))("GET", f"/queues/{queue}/review/")
    assert (answer.status_code, page.status_code) == (503, 200)
    for text in (answer.content.decode(), page.content.decode()):
        assert "Cannot read the sample texts of" in text
        assert ("dump 7: bodies/" in text) is not is_blind and (not is_blind or run.uid not in text)


def test_the_responses_of_a_group_are_shuffled_for_each_person(
    lead: ApiClient, ann: ApiClient, run: Run, project: Project
) -> None:
    queue = create(lead, run, unit="group", num_reviewers_per_item=8)
    orders = set()
    for number in range(5):
        user = builders.member(project, f"p{number}", "annotator")
        api = ApiClient.with_token(user, "read", "annotate")
        item = api("POST", f"queues/{queue}/next/", {}).json()["item"]
        again = api("POST", f"queues/{queue}/next/", {}).json()["item"]
        assert item["responses"] == again["responses"]
        orders.add(tuple(row["sample"] for row in item["responses"]))
        best = item["responses"][2]["sample"]
        order, path = {"order": [[3], [1, 2, 4]]}, f"queues/{queue}/items/{item['id']}/answers/"
        draft = api("PUT", path, {"order": [[4], [2, 1]], "rationale": "so", "draft": True})
        assert draft.status_code == 200 and draft.json()["done"] is False
        entered = api("POST", f"queues/{queue}/next/", {}).json()["item"]["entered"]
        assert entered["order"]["rationale"] == "so" and list(map(sorted, entered["order"]["value"])) == [[4], [1, 2]]
        assert api("PUT", path, order).status_code == 200
        rank = run.labels.get(sample=best, author=user.username, name="rank")
        assert rank.value == 1
    assert len(orders) > 1


def test_numbers_of_another_version_of_a_group_are_refused(lead: ApiClient, ann: ApiClient, run: Run) -> None:
    here = f"queues/{create(lead, run, unit='group')}/"
    item = ann("POST", f"{here}next/", {}).json()["item"]
    run.steps.get().rows.filter(index=3).update(group="")
    path, order = f"{here}items/{item['id']}/answers/", [[1], [2], [3]]
    for is_draft in (True, False):
        refused = ann("PUT", path, {"order": order, "version": item["version"], "draft": is_draft})
        assert refused.status_code == 412 and refused.json()["error"]["field"] == "version"
    now = ann("POST", f"{here}next/", {}).json()["item"]
    assert now["entered"] == {} and now["version"] != item["version"]
    assert ann("PUT", path, {"order": order, "version": now["version"]}).status_code == 200


@pytest.mark.parametrize(
    "odd", ["NUL \x00", "half \ud800", {"\ud800": [float("nan"), 10**400]}], ids=["NUL", "surrogate", "numbers"]
)
@pytest.mark.parametrize("is_draft", [True, False])
def test_answers_that_no_database_stores_are_no_error_of_the_server(
    lead: ApiClient, ann: ApiClient, run: Run, odd: Any, is_draft: bool
) -> None:
    here = f"queues/{create(lead, run)}/"
    item = ann("POST", f"{here}next/", {}).json()["item"]["id"]
    body = {"answers": {"correct": {"value": odd, "rationale": odd}}, "draft": is_draft}
    assert ann("PUT", f"{here}items/{item}/answers/", body).status_code == (200 if is_draft else 400)
    assert ann("POST", f"{here}next/", {}).json()["item"]["id"] == item


@pytest.mark.parametrize("name", ["reviewers", "roles"])
@pytest.mark.parametrize("value", [5, "ann", [["x"]], [1], ["a\x00"], ["\ud800"], {"x": 1}], ids=range(7))
def test_odd_people_are_refused(lead: ApiClient, run: Run, name: str, value: Any) -> None:
    response = lead("PATCH", f"queues/{create(lead, run)}/", {name: value})
    assert response.status_code == 400 and response.json()["error"]["field"] == name


def test_the_same_answers_again_keep_what_the_person_said_elsewhere(lead: ApiClient, ann: ApiClient, run: Run) -> None:
    queue = create(lead, run)
    rated = [Answer(sample, "quality", 4) for sample in Sample.objects.values_list("pk", flat=True)]
    store_labels(run, User.objects.get(username="ann"), rated)
    item = ann("POST", f"queues/{queue}/next/").json()["item"]
    labels = Label.objects.active().filter(sample=QueueItem.objects.get(pk=item["id"]).sample)
    path, body = f"queues/{queue}/items/{item['id']}/answers/", {"answers": {"correct": {"value": True}}}
    for _try in range(2):
        assert ann("PUT", path, body).status_code == 200
        assert set(labels.values_list("name", flat=True)) == {"correct", "quality"}
    assert ann("PUT", path, {**body, "shown": True}).status_code == 200
    assert set(labels.values_list("name", flat=True)) == {"correct"}


@pytest.mark.parametrize(
    ("value", "stored"), [("false", False), ("0", False), (False, False), (None, False), ("1", True)]
)
def test_a_switch_of_a_queue_is_what_it_says(lead: ApiClient, run: Run, value: Any, stored: bool) -> None:
    queue = Queue.objects.get(pk=create(lead, run, is_blind=value, grows=value))
    assert (queue.is_blind, queue.grows) == (stored, stored)


def test_a_switch_that_is_neither_true_nor_false_is_refused(lead: ApiClient, run: Run) -> None:
    body = {"project": "math", "name": "check", "runs": [run.uid], "is_blind": "maybe"}
    refused = lead("POST", "queues/", body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "is_blind")


def test_a_page_of_items_reads_the_answers_of_its_items_only(lead: ApiClient, ann: ApiClient, run: Run) -> None:
    queue = create(lead, run)
    for _item in range(4):
        item = ann("POST", f"queues/{queue}/next/").json()["item"]
        ann("PUT", f"queues/{queue}/items/{item['id']}/answers/", {"answers": {"correct": {"value": True}}})
    with CaptureQueriesContext(connection) as made:
        [row] = lead("GET", f"queues/{queue}/items/?page_size=1&page=3").json()["results"]
    assert row["answers"]["correct"] == {"ann": True}
    others = set(QueueItem.objects.exclude(pk=row["id"]).values_list("sample", flat=True))
    asked = " ".join(query["sql"] for query in made if "rollouts_flag" in query["sql"])
    assert row["sample"] in asked and not any(sample in asked for sample in others)
