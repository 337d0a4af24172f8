"""The pages of review queues, as forms without a script use them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client

from dashboard.sign_in.links import create_sign_in_link
from rollouts import queues
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import AuditEntry, Label, Project, Run, Sample
from rollouts.runs import load_run_sizes
from rollouts.samples import SampleBody, load_bodies
from tests.dashboard.pages.queues.conftest import create_queue, open_item
from tests.dashboard.support.sign_in import use_sign_in_link
from tests.rollouts.support.query_rows import push
from tests.support import builders
from tests.support.images import IMAGES, PNG, data_url


def test_a_person_answers_skips_undoes_and_sees_a_summary(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead)
    path = f"/queues/{queue.pk}/"
    item, html = open_item(annotator_client, queue)
    assert "Is the answer correct?" in html and "<strong>last</strong>" in html and "secret-truth" in html
    refused = annotator_client.post(f"{path}items/{item}/answers/", {"q.quality": "3"}, follow=True).content.decode()
    assert "Answer the required question" in refused and open_item(annotator_client, queue)[0] == item
    answers = {"q.correct": "false", "q.quality": "3", "seconds": "2.5"}
    response = annotator_client.post(f"{path}items/{item}/answers/", answers)
    assert response["Location"] == f"{path}review/"
    assert {label.name: label.value for label in Label.objects.all()} == {"correct": False, "quality": 3}
    second, _html = open_item(annotator_client, queue)
    annotator_client.post(f"{path}items/{second}/answers/", {"cannot_judge": "1", "cannot_judge_reason": "language"})
    third, _html = open_item(annotator_client, queue)
    annotator_client.post(f"{path}items/{third}/skip/")
    _nothing, html = open_item(annotator_client, queue)
    assert "Nothing is left for you" in html and "You answered 2 items" in html and "no 1" in html
    assert "Answer what you skipped" in html
    assert annotator_client.post(f"{path}undo/")["Location"] == f"{path}review/?item={second}"
    _item, html = open_item(annotator_client, queue, f"?item={second}")
    assert re.search(r'name="cannot_judge"[^>]*checked', html) and "language" in html
    assert "Is the answer correct?" in open_item(annotator_client, queue, f"?item={third}")[1]
    annotator_client.post(f"{path}items/{third}/answers/", answers)
    annotator_client.post(f"{path}items/{second}/answers/", answers)
    assert "Answer what you skipped" not in open_item(annotator_client, queue)[1]


def test_the_audit_log_of_an_undone_answer_has_one_number_of_labels(
    run: Run, lead: User, annotator_client: Client
) -> None:
    queue = create_queue(run, lead)
    item, _html = open_item(annotator_client, queue)
    annotator_client.post(
        f"/queues/{queue.pk}/items/{item}/answers/", {"q.correct": "false"}
    )  # the other question stays open
    refused = annotator_client.post(f"/queues/{queue.pk}/items/{item}/skip/", headers={"Accept": "application/json"})
    assert (refused.status_code, "You have answered this item" in refused.json()["message"]) == (400, True)
    annotator_client.post(f"/queues/{queue.pk}/undo/")
    entry = AuditEntry.objects.get(verb="label.undo")
    assert entry.subject == "“Is the answer correct?: no” on 1 sample"
    owner = Client()
    owner.force_login(builders.member(run.project, "olga", "owner"))
    page = owner.get("/audit/?project=math").content.decode()
    assert ">1 sample</td>" in page and "labels: 1 · name: correct" in page


def test_a_marked_part_is_stored_in_characters_of_the_response(
    project: Project, run: Run, lead: User, annotator_client: Client
) -> None:
    rows = [{"prompt": "p", "response": "🎉 so\r\n\x01so it is so 𝑥=2", "group": "g", "index": 0}]
    push(run, rows, step=5)
    question = {"key": "where", "title": "Where?", "kind": "yes-no", "range": True}
    save_rubric(project, lead, [question], "")
    queue = create_queue(run, lead, q="step:5")
    item, html = open_item(annotator_client, queue)
    assert 'name="q.where.quote"' in html
    answers = {"q.where": "true", "q.where.quote": "so 𝑥", "q.where.near": "16"}
    path = f"/queues/{queue.pk}/items/{item}/answers/"
    annotator_client.post(path, {**answers, "draft": "1"})
    draft = open_item(annotator_client, queue)[1]
    start, end = (re.search(rf'name="q.where.{part}" value="(\d+)"', draft)[1] for part in ("start", "end"))  # type: ignore[index]
    annotator_client.post(path, {"q.where": "true", "q.where.start": start, "q.where.end": end})
    label = Label.objects.get(name="where")
    assert rows[0]["response"][label.start : label.end] == "so 𝑥"
    refused = annotator_client.post(
        path, {**answers, "q.where.quote": "not there"}, headers={"accept": "application/json"}
    )
    assert refused.status_code == 400 and "does not contain the selected text" in refused.json()["message"]


@pytest.mark.parametrize("draft", ["", "1"])
def test_typed_text_is_kept_although_a_marked_part_is_refused(
    run: Run, lead: User, annotator_client: Client, draft: str
) -> None:
    save_rubric(run.project, lead, [{"key": "where", "title": "Where?", "kind": "yes-no", "range": True}], "")
    queue = create_queue(run, lead)
    item = open_item(annotator_client, queue)[0]
    answers = {
        "q.where": "true",
        "q.where.quote": "not there",
        "has_correction": "1",
        "correction": "Four",
        "draft": draft,
    }
    annotator_client.post(f"/queues/{queue.pk}/items/{item}/answers/", answers)
    opened, html = open_item(annotator_client, queue)
    assert opened == item and "Four</textarea>" in html and 'name="q.where.end" value=""' in html


def test_a_reviewer_who_is_done_is_sent_to_a_queue_with_items(run: Run, lead: User, annotator_client: Client) -> None:
    done, finished, waiting = (create_queue(run, lead, name=name) for name in ("done", "finished", "waiting"))
    for queue in (finished, done):
        for item in queue.items.all():
            annotator_client.post(f"/queues/{queue.pk}/items/{item.pk}/answers/", {"q.correct": "false"})
    assert "Continue with waiting" in open_item(annotator_client, done)[1]
    queues.close_queue(waiting, lead)
    assert "Continue with" not in open_item(annotator_client, done)[1]


def test_skipped_items_come_back_in_turn(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead)
    path = f"/queues/{queue.pk}/"
    items = list(queue.items.order_by("position").values_list("pk", flat=True))
    annotator_client.post(f"{path}items/{items[1]}/answers/", {"q.correct": "false"})
    for item in (items[2], items[0]):
        annotator_client.post(f"{path}items/{item}/skip/")
    assert "You skipped 2" in open_item(annotator_client, queue)[1]
    page = annotator_client.post(f"{path}skipped/", follow=True).content.decode()
    assert "1 answered, 2 left" in page and "2 skipped items are back." in page
    for remaining, item in ((2, items[2]), (1, items[0])):
        opened, html = open_item(annotator_client, queue)
        assert opened == item and f"{remaining} left" in html
        annotator_client.post(f"{path}items/{item}/answers/", {"q.correct": "false"})
    done = open_item(annotator_client, queue)[1]
    assert "You answered 3 items." in done and "You skipped" not in done


def test_items_that_others_answered_meanwhile_do_not_come_back(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead)
    for _ in range(3):
        annotator_client.post(f"/queues/{queue.pk}/items/{open_item(annotator_client, queue)[0]}/skip/")
    queues.submit_answers(queue.items.get(position=0), lead, {"correct": {"value": True}})
    page = annotator_client.post(f"/queues/{queue.pk}/skipped/", follow=True).content.decode()
    assert "0 answered, 2 left" in page
    queues.close_queue(queue, lead)
    assert "is closed" in annotator_client.post(f"/queues/{queue.pk}/skipped/", follow=True).content.decode()


def test_a_response_is_corrected(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead, selection="worst", count=1)
    item, html = open_item(annotator_client, queue)
    assert "one of the lowest scores of the query" in html
    path = f"/queues/{queue.pk}/items/{item}/answers/"
    annotator_client.post(path, {"q.correct": "false", "correction": "not saved"})
    assert not Label.objects.filter(name="correction").exists()
    annotator_client.post(path, {"q.correct": "false", "has_correction": "1", "correction": "better\r\ntext"})
    assert Label.objects.get(name="correction").value == "better\ntext"
    assert "better\ntext" in open_item(annotator_client, queue, f"?item={item}")[1]
    annotator_client.post(path, {"q.correct": "false"})
    assert not Label.objects.active().filter(name="correction").exists()


def test_the_correction_of_a_sample_without_text_begins_empty(
    run: Run, lead: User, annotator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_tokens(samples: list[Sample]) -> dict[str, SampleBody]:
        return {pk: replace(body, textless=True) for pk, body in load_bodies(samples).items()}

    monkeypatch.setattr("rollouts.queues.content.load_bodies", load_tokens)
    html = open_item(annotator_client, create_queue(run, lead))[1]
    assert re.search(r'<textarea class="mono" name="correction"[^>]*>\n</textarea>', html)


def test_a_draft_is_kept(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead)
    item, _html = open_item(annotator_client, queue)
    draft = {"q.correct": "true", "q.quality": "4", "draft": "1"}
    response = annotator_client.post(
        f"/queues/{queue.pk}/items/{item}/answers/", draft, headers={"accept": "application/json"}
    )
    assert response.status_code == 200 and not Label.objects.exists()
    same, html = open_item(annotator_client, queue)
    assert same == item and re.search(r'name="q.correct"\s+value="true" checked', html)
    assert re.search(r'name="q.quality"\s+value="4" checked', html)


@pytest.mark.parametrize("unit", ["sample", "group"])
def test_a_blind_queue_shows_a_reviewer_nothing_but_texts(
    run: Run, lead: User, annotator_client: Client, unit: str
) -> None:
    queue = create_queue(run, lead, unit=unit, is_blind=True, q="source:secret-source")
    item, html = open_item(annotator_client, queue)
    pages = [html, annotator_client.get("/queues/").content.decode()]
    order = {"place.1": "1", "place.2": "1", "place.3": "2"}
    form = order if unit == "group" else {"q.correct": "true"}
    part = {"place.2": "1", "draft": "1"}
    annotator_client.post(f"/queues/{queue.pk}/items/{item}/answers/", part, headers={"accept": "application/json"})
    pages.append(open_item(annotator_client, queue)[1])
    assert list_places(pages[-1]) == (["", "1", ""] if unit == "group" else [])
    saved = annotator_client.post(
        f"/queues/{queue.pk}/items/{item}/answers/", form, headers={"accept": "application/json"}
    )
    assert saved.status_code == 200
    pages += [
        saved.content.decode(),
        *(open_item(annotator_client, queue, query)[1] for query in ("", f"?item={item}")),
    ]
    samples = list(run.steps.get().rows.values_list("pk", flat=True))
    for secret in ("secret", "0.77", "0.765", "770077", run.uid, *samples):
        assert all(secret not in page for page in pages), secret
    assert list_places(pages[-1]) == (["1", "1", "2"] if unit == "group" else [])
    assert "text 0" in html and "Hidden in blind mode" in html


def test_places_of_a_group_that_has_changed_are_refused(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead, unit="group")
    item, html = open_item(annotator_client, queue)
    assert re.search(r"<button[^>]* data-take-back>Take back.*?<button[^>]* data-join>same place", html, re.S)
    run.steps.get().rows.filter(index=2).update(group="")
    field, path = re.compile(r'name="version" value="(\w+)"'), f"/queues/{queue.pk}/items/{item}/answers/"
    form = {"place.1": "1", "place.2": "2"}
    refused = annotator_client.post(path, {**form, "version": field.findall(html)}, follow=True).content.decode()
    assert "have changed since you opened it" in refused and not Label.objects.exists()
    annotator_client.post(path, {**form, "version": field.findall(refused)})
    assert Label.objects.filter(name="rank").count() == 2


def test_answers_that_are_sent_again_keep_what_the_page_did_not_show(
    run: Run, lead: User, annotator_client: Client
) -> None:
    first, second = (create_queue(run, lead, name=name) for name in ("first", "second"))
    item, _html = open_item(annotator_client, first)
    form = {"q.correct": "true", "has_correction": "1", "correction": "better"}
    annotator_client.post(f"/queues/{first.pk}/items/{item}/answers/", form)
    corrections = Label.objects.active().filter(name="correction")
    item, html = open_item(annotator_client, second)
    path = f"/queues/{second.pk}/items/{item}/answers/"
    for _time in range(2):  # the response of the first one was lost
        annotator_client.post(path, {"q.correct": "false"})
    assert corrections.exists() and 'name="shown"' not in html
    _item, html = open_item(annotator_client, second, f"?item={item}")
    assert "better</textarea>" in html
    annotator_client.post(path, {"q.correct": "false", "shown": re.findall(r'name="shown" value="(\w+)"', html)})
    assert not corrections.exists()


def list_places(html: str) -> list[str]:
    """The places of the responses of a group, in the order of their numbers."""
    return re.findall(r'name="place.\d" form="answers-form"\s+value="(.*?)"', html)


def test_without_a_queue_the_page_says_what_to_do(run: Run, lead: User, annotator_client: Client) -> None:
    assert "Review low scores instead" in annotator_client.get("/queues/").content.decode()
    client = Client()
    client.force_login(lead)
    assert "Create queue" in client.get("/queues/").content.decode()


def read_content(response: Any) -> bytes:
    async def read_stream() -> bytes:
        return b"".join([chunk async for chunk in response])

    return async_to_sync(read_stream)() if response.streaming else bytes(response.content)


def count_label_hints(client: Client, run: Run, sample: str) -> dict[str, int]:
    """How many samples queries about labels find, and how many rows of the step have a flag."""
    found = {
        q: int(client.get("/api/v1/samples/", {"run": run.uid, "q": q}).json()["count"])
        for q in ("author:zoe", "label.quality>2", "is:flagged")
    }
    html = client.get(f"/runs/{run.uid}/steps/770077/").content.decode()
    matches = client.get(f"/runs/{run.uid}/steps/all/", {"q": "is:flagged"}).content.decode()
    assert (f'data-id="{sample}"' in matches) == bool(found["is:flagged"])
    completed = read_content(client.get("/api/v1/completions/", {"run": run.uid, "q": "author:"})).decode()
    assert ("zoe" in completed) == bool(found["author:zoe"])
    return {**found, "marks": html.count("tag flag")}


@pytest.mark.parametrize("unit", ["sample", "group"])
def test_labels_of_others_reach_no_reviewer_of_an_open_blind_queue(
    run: Run, lead: User, annotator_client: Client, unit: str
) -> None:
    queue = create_queue(run, lead, is_blind=True, unit=unit)
    sample = run.steps.get().rows.order_by("index").last()
    assert sample is not None
    mate = builders.member(run.project, "zoe", "annotator")
    store_labels(
        run, mate, [Answer(sample.pk, "quality", 2, rationale="zoe was wrong"), Answer(sample.pk, "flag", "bad")]
    )
    store_labels(run, mate, [Answer(sample.pk, "quality", 3)])
    quality = Label.objects.get(name="quality")
    paths = [
        f"/api/v1/labels/?run={run.uid}", f"/api/v1/labels/{quality.pk}/history/", f"/api/v1/flags/?run={run.uid}",
        f"/api/v1/samples/{sample.pk}/", f"/api/v1/exports/samples/?run={run.uid}", f"/samples/{sample.pk}/",
        f"/samples/{sample.pk}/labels/", f"/samples/?of={sample.pk}",
    ]  # fmt: skip

    def find_shown_labels(client: Client) -> list[bool]:
        """Whether the response of each path shows what Zoe answered."""
        return [b"zoe" in read_content(client.get(path)) for path in paths]

    lead_client = Client()
    lead_client.force_login(lead)
    assert find_shown_labels(lead_client) == [True] * len(paths)
    assert find_shown_labels(annotator_client) == [False] * len(paths)
    assert count_label_hints(lead_client, run, sample.pk) == {
        "author:zoe": 1,
        "label.quality>2": 1,
        "is:flagged": 1,
        "marks": 1,
    }
    assert count_label_hints(annotator_client, run, sample.pk) == {
        "author:zoe": 0,
        "label.quality>2": 0,
        "is:flagged": 0,
        "marks": 0,
    }
    chart = f"/api/v1/runs/{run.uid}/query-curve/?q=is:flagged"
    assert (lead_client.get(chart).status_code, annotator_client.get(chart).status_code) == (200, 400)
    store_labels(run, User.objects.get(username="ann"), [Answer(sample.pk, "quality", 5)])
    assert "quality" in annotator_client.get(paths[0]).content.decode(), "a reviewer's own labels stay"
    queues.close_queue(queue, lead)
    assert find_shown_labels(annotator_client) == [True] * len(paths)


def test_annotators_start_at_their_queues_and_a_deletion_counts_queue_items(
    run: Run, lead: User, annotator_client: Client
) -> None:
    user = User.objects.get(username="ann")
    link = create_sign_in_link(user)
    queue = create_queue(run, lead, count=2, selection="random")
    assert use_sign_in_link(Client(), link)["Location"] == "/queues/"
    assert use_sign_in_link(Client(), create_sign_in_link(lead))["Location"] == "/", "a lead starts at the run list"
    assert annotator_client.get("/sign-in/")["Location"] == "/queues/"
    assert annotator_client.get("/sign-in/?next=/live/")["Location"] == "/live/"
    assert annotator_client.get("/review/")["Location"] == "/queues/", "the menu: Review"
    assert "Location" not in annotator_client.get("/review/?queue=low", follow=True), "the tab of the quick lists"
    for _item in range(2):
        annotator_client.post(f"/queues/{queue.pk}/items/{open_item(annotator_client, queue)[0]}/skip/")
    assert annotator_client.get("/sign-in/")["Location"] == "/"
    assert "/review/?" in annotator_client.get("/review/")["Location"]
    owner = Client()
    owner.force_login(builders.member(run.project, "olga", "owner"))
    html = owner.post("/tidy/", {"do": "delete", "run": run.uid}, follow=True).content.decode()
    assert "queue items" in html and load_run_sizes([run])[run.pk].queue_items == 2


@pytest.mark.parametrize("unit", ["sample", "group"])
def test_images_are_shown_without_what_a_blind_queue_hides(
    project: Project, lead: User, annotator_client: Client, unit: str
) -> None:
    run = builders.run(project, "images")
    question = [{"type": "image", "image": data_url(PNG)}, {"type": "image", "image": "/srv/secret.png"}]
    more = {"secret_screenshot": data_url(IMAGES["gif"], "image/gif")}
    rows = [
        {"prompt": [{"role": "user", "content": question}], "response": f"red {n}", "group": "a", "index": n, **more}
        for n in range(2)
    ]
    push(run, rows, step=1)
    pages = []
    for is_blind in (False, True):
        queue = create_queue(run, lead, name=f"blind {is_blind}", unit=unit, is_blind=is_blind)
        item, html = open_item(annotator_client, queue)
        pages.append(html)
        urls = re.findall(rf'<img src="(/queues/{queue.pk}/items/{item}/images/[^"]+)"', html)
        assert len(urls) == (1 if is_blind else 2) and annotator_client.get(urls[0]).content == PNG
    assert "/srv/secret.png" in pages[0] and "secret_screenshot" in pages[0] and "secret" not in pages[1]
    viewer_client = Client()
    viewer_client.force_login(builders.member(project, "vera", "viewer"))
    assert viewer_client.get(urls[0]).status_code == 403
