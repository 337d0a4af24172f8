"""Review queues, as scripts and the command line use them, and what a blind queue hides from a reviewer."""

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
def annotator(project: Project) -> ApiClient:
    return ApiClient.with_token(builders.member(project, "ann", "annotator"), "read", "annotate")


def create_queue(lead: ApiClient, run: Run, **settings: Any) -> int:
    body = {"project": "math", "name": "check", "runs": [run.uid], **settings}
    response = lead("POST", "queues/", body)
    assert response.status_code == 201, response.json()
    return int(response.json()["id"])


def test_a_queue_is_created_answered_decided_and_closed(lead: ApiClient, annotator: ApiClient, run: Run) -> None:
    wanted = {"project": "math", "name": "check", "runs": [run.uid], "selection": "random", "count": 2}
    assert lead("POST", "queues/", {**wanted, "dry_run": True}).json() == {
        "matched": 4, "items": 2, "strata": [{"stratum": "", "matched": 4, "drawn": 2}],
    }  # fmt: skip
    queue = create_queue(lead, run, selection="random", count=2)
    path = f"queues/{queue}/"
    assert [row["id"] for row in annotator("GET", "queues/?state=mine").json()["results"]] == [queue]
    item = annotator("POST", f"{path}next/", {}).json()["item"]
    assert (item["run"], item["step"], item["ground_truth"]) == (run.uid, 770077, "secret-truth")
    assert not {"stratum", "probability"} & item.keys(), "they would reveal which items are known"
    assert [question["key"] for question in item["questions"]] == ["correct", "quality"]
    answers = f"{path}items/{item['id']}/answers/"
    draft = {"answers": {"quality": {"value": 2}}, "draft": True}
    assert annotator("PUT", answers, draft).json()["done"] is False
    assert annotator("POST", f"{path}next/", {}).json()["item"]["entered"] == {"quality": {"value": 2}}
    assert annotator("PUT", answers, {"answers": {"quality": {"value": 2}}}).json()["error"]["field"] == "correct"
    saved = annotator("PUT", answers, {"answers": {"correct": {"value": False, "rationale": "why"}}, "seconds": 3.5})
    assert saved.json() == {"item": item["id"], "done": True}
    second = annotator("POST", f"{path}next/", {"after": item["position"]}).json()
    assert (second["item"]["position"], second["own"]["done"]) == (1, 1)
    assert annotator("POST", f"{path}items/{second['item']['id']}/skip/", {}).status_code == 200
    assert annotator("POST", f"{path}next/", {}).json()["item"] is None
    listed = lead("GET", f"{path}items/").json()["results"]
    assert listed[0]["answers"] == {"correct": {"ann": False}} and listed[0]["probability"] == 0.5
    decision = {"question": "correct", "value": True, "reason": "the answer is right"}
    assert lead("POST", f"{path}items/{item['id']}/decide/", decision).status_code == 200
    assert lead("GET", f"{path}items/").json()["results"][0]["decided"] == {"correct": True}
    shown = lead("GET", path).json()
    assert (shown["answers_done"], [person["user"] for person in shown["people"]]) == (1, ["ann"])
    assert annotator("POST", f"{path}undo/", {}).json()["position"] == 0
    assert lead("PATCH", path, {"closed": True}).json()["closed_at"]
    assert annotator("POST", f"{path}next/", {}).status_code == 409
    assert annotator("GET", "queues/").json()["count"] == 0


def test_each_role_has_its_rights_on_a_queue(lead: ApiClient, annotator: ApiClient, run: Run, project: Project) -> None:
    queue = create_queue(lead, run, reviewers=["ann"])
    path = f"queues/{queue}/"
    bob = ApiClient.with_token(builders.member(project, "bob", "annotator"), "read", "annotate")
    vera = ApiClient.with_token(builders.member(project, "vera", "viewer"), "read", "annotate")
    stranger = ApiClient.with_token(User.objects.create_user("mallory"), "read", "annotate")
    item = annotator("POST", f"{path}next/", {}).json()["item"]["id"]
    for api, status in ((bob, 403), (vera, 403), (stranger, 404)):
        assert api("POST", f"{path}next/", {}).status_code == status
        assert api("PUT", f"{path}items/{item}/answers/", {"answers": {}}).status_code == status
        assert api("POST", f"{path}undo/", {}).status_code == status
    for api, status in ((annotator, 403), (vera, 403), (stranger, 404)):
        assert api("GET", f"{path}items/").status_code == status
        assert api("PATCH", path, {"closed": True}).status_code == status
        assert api("POST", "queues/", {"project": "math", "name": "x", "runs": [run.uid]}).status_code == status
    assert "people" not in annotator("GET", path).json() and "people" in lead("GET", path).json()
    assert stranger("GET", "queues/?state=all").json()["count"] == 0


@pytest.mark.parametrize("state", ["open", "mine"])
def test_many_queues_are_listed_with_as_many_queries_as_one(
    lead: ApiClient, annotator: ApiClient, run: Run, state: str
) -> None:
    counts = []
    for number in range(4):
        create_queue(lead, run, name=f"queue {number}", is_blind=True, reviewers=["ann"])
        Queue.objects.update(rubric=None)
        with CaptureQueriesContext(connection) as captured:
            rows = annotator("GET", f"queues/?state={state}").json()["results"]
        counts.append(len(captured))
        assert len(rows) == number + 1 and {row["items"] for row in rows} == {4} and "q" not in rows[0]
    assert len(set(counts[1:])) == 1


def test_an_item_of_a_run_in_the_trash_is_not_found(lead: ApiClient, annotator: ApiClient, run: Run) -> None:
    path = f"queues/{create_queue(lead, run)}/"
    item = annotator("POST", f"{path}next/", {}).json()["item"]["id"]
    Run.objects.update(deleted_at=timezone.now())
    answers = {"answers": {"correct": {"value": True}}}
    assert annotator("PUT", f"{path}items/{item}/answers/", answers).status_code == 404
    assert annotator("POST", f"{path}next/", {}).json()["item"] is None
    browser = ApiClient.signed_in(User.objects.get(username="ann"))
    assert browser("GET", f"/queues/{path.split('/')[1]}/review/?item={item}").status_code == 404
    assert not Label.objects.exists()


@pytest.mark.parametrize("unit", ["sample", "group"])
def test_a_blind_queue_shows_a_reviewer_nothing_but_the_texts(
    lead: ApiClient, annotator: ApiClient, run: Run, unit: str
) -> None:
    queue = create_queue(lead, run, unit=unit, is_blind=True, q="score>0.5 source:secret-source")
    path = f"queues/{queue}/"
    answers = [annotator("GET", "queues/"), annotator("GET", path), annotator("POST", f"{path}next/", {})]
    item = answers[-1].json()["item"]
    assert item["responses"][0]["response"].startswith("text")
    body = {"order": [[1, 2], [4, 3]]} if unit == "group" else {"answers": {"correct": {"value": True}}}
    answers += [
        annotator("PUT", f"{path}items/{item['id']}/answers/", body),
        annotator("POST", f"{path}undo/", {}),
        annotator("POST", f"{path}next/", {"item": item["id"]}),
        annotator("PUT", f"{path}items/{item['id']}/answers/", {"answers": {}, "order": []}),
        annotator("GET", f"{path}items/"),
    ]
    sent = json.dumps([answer.json() for answer in answers])
    samples = list(run.steps.get().rows.values_list("pk", flat=True))
    for secret in ("secret", "0.765", "770077", run.uid, *samples):
        assert secret not in sent, secret
    assert lead("GET", path).json()["q"].startswith("score>0.5")


@pytest.mark.parametrize("is_blind", [True, False])
def test_an_unreadable_text_is_named_only_outside_of_a_blind_queue(
    lead: ApiClient, annotator: ApiClient, run: Run, is_blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(samples: list[Sample]) -> None:
        raise StorageUnavailableError(f"Cannot read the sample texts of dump 7: bodies/{run.uid}/train.")

    monkeypatch.setattr("rollouts.queues.content.load_bodies", fail)
    queue = create_queue(lead, run, is_blind=is_blind)
    answer = annotator("POST", f"queues/{queue}/next/", {})
    page = ApiClient.signed_in(User.objects.get(username="ann"))("GET", f"/queues/{queue}/review/")
    assert (answer.status_code, page.status_code) == (503, 200)
    for text in (answer.content.decode(), page.content.decode()):
        assert "Cannot read the sample texts of" in text
        assert ("dump 7: bodies/" in text) is not is_blind and (not is_blind or run.uid not in text)


def test_the_responses_of_a_group_are_shuffled_for_each_person(
    lead: ApiClient, annotator: ApiClient, run: Run, project: Project
) -> None:
    queue = create_queue(lead, run, unit="group", num_reviewers_per_item=8)
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


def test_an_order_of_another_version_of_a_group_is_refused(lead: ApiClient, annotator: ApiClient, run: Run) -> None:
    queue_path = f"queues/{create_queue(lead, run, unit='group')}/"
    item = annotator("POST", f"{queue_path}next/", {}).json()["item"]
    run.steps.get().rows.filter(index=3).update(group="")
    path, order = f"{queue_path}items/{item['id']}/answers/", [[1], [2], [3]]
    for is_draft in (True, False):
        refused = annotator("PUT", path, {"order": order, "version": item["version"], "draft": is_draft})
        assert refused.status_code == 412 and refused.json()["error"]["field"] == "version"
    changed_item = annotator("POST", f"{queue_path}next/", {}).json()["item"]
    assert changed_item["entered"] == {} and changed_item["version"] != item["version"]
    assert annotator("PUT", path, {"order": order, "version": changed_item["version"]}).status_code == 200


@pytest.mark.parametrize(
    "odd", ["NUL \x00", "half \ud800", {"\ud800": [float("nan"), 10**400]}], ids=["NUL", "surrogate", "numbers"]
)
@pytest.mark.parametrize("is_draft", [True, False])
def test_answers_that_no_database_can_store_do_not_make_the_server_fail(
    lead: ApiClient, annotator: ApiClient, run: Run, odd: Any, is_draft: bool
) -> None:
    path = f"queues/{create_queue(lead, run)}/"
    item = annotator("POST", f"{path}next/", {}).json()["item"]["id"]
    body = {"answers": {"correct": {"value": odd, "rationale": odd}}, "draft": is_draft}
    assert annotator("PUT", f"{path}items/{item}/answers/", body).status_code == (200 if is_draft else 400)
    assert annotator("POST", f"{path}next/", {}).json()["item"]["id"] == item


@pytest.mark.parametrize("name", ["reviewers", "roles"])
@pytest.mark.parametrize("value", [5, "ann", [["x"]], [1], ["a\x00"], ["\ud800"], {"x": 1}], ids=range(7))
def test_invalid_reviewers_and_roles_are_refused(lead: ApiClient, run: Run, name: str, value: Any) -> None:
    response = lead("PATCH", f"queues/{create_queue(lead, run)}/", {name: value})
    assert response.status_code == 400 and response.json()["error"]["field"] == name


def test_answers_sent_twice_keep_labels_that_were_set_outside_of_the_queue(
    lead: ApiClient, annotator: ApiClient, run: Run
) -> None:
    queue = create_queue(lead, run)
    rated = [Answer(sample, "quality", 4) for sample in Sample.objects.values_list("pk", flat=True)]
    store_labels(run, User.objects.get(username="ann"), rated)
    item = annotator("POST", f"queues/{queue}/next/").json()["item"]
    labels = Label.objects.active().filter(sample=QueueItem.objects.get(pk=item["id"]).sample)
    path, body = f"queues/{queue}/items/{item['id']}/answers/", {"answers": {"correct": {"value": True}}}
    for _try in range(2):
        assert annotator("PUT", path, body).status_code == 200
        assert set(labels.values_list("name", flat=True)) == {"correct", "quality"}
    assert annotator("PUT", path, {**body, "shown": True}).status_code == 200
    assert set(labels.values_list("name", flat=True)) == {"correct"}


@pytest.mark.parametrize(
    ("value", "stored"), [("false", False), ("0", False), (False, False), (None, False), ("1", True)]
)
def test_a_boolean_setting_of_a_queue_is_parsed(lead: ApiClient, run: Run, value: Any, stored: bool) -> None:
    queue = Queue.objects.get(pk=create_queue(lead, run, is_blind=value, grows=value))
    assert (queue.is_blind, queue.grows) == (stored, stored)


def test_a_boolean_setting_that_is_neither_true_nor_false_is_refused(lead: ApiClient, run: Run) -> None:
    body = {"project": "math", "name": "check", "runs": [run.uid], "is_blind": "maybe"}
    refused = lead("POST", "queues/", body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "is_blind")


def test_a_page_of_items_reads_the_answers_of_its_items_only(lead: ApiClient, annotator: ApiClient, run: Run) -> None:
    queue = create_queue(lead, run)
    for _item in range(4):
        item = annotator("POST", f"queues/{queue}/next/").json()["item"]
        annotator("PUT", f"queues/{queue}/items/{item['id']}/answers/", {"answers": {"correct": {"value": True}}})
    with CaptureQueriesContext(connection) as made:
        [row] = lead("GET", f"queues/{queue}/items/?page_size=1&page=3").json()["results"]
    assert row["answers"]["correct"] == {"ann": True}
    others = set(QueueItem.objects.exclude(pk=row["id"]).values_list("sample", flat=True))
    asked = " ".join(query["sql"] for query in made if "rollouts_flag" in query["sql"])
    assert row["sample"] in asked and not any(sample in asked for sample in others)
