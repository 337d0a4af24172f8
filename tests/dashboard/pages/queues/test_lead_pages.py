"""The pages with which a lead creates, changes and closes a queue, as forms without a script use them."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.models import Membership, Queue, Run
from tests.dashboard.pages.queues.conftest import create_queue, open_item
from tests.rollouts.support.query_rows import push
from tests.support import builders


def test_a_lead_creates_follows_and_closes_a_queue(run: Run, lead: User, annotator_client: Client) -> None:
    client = Client()
    client.force_login(lead)
    html = client.get(f"/queues/new/?run={run.uid}&selection=random&count=2").content.decode()
    assert "Is the answer correct?" in html
    wrong = client.post("/queues/new/", {"project": "math", "runs": run.uid, "name": "c", "q": "score<"})
    assert wrong.status_code == 400 and 'id="form-error"' in wrong.content.decode()
    form = {"project": "math", "runs": run.uid, "name": "check", "selection": "random", "count": "2",
            "num_reviewers_per_item": "1", "reviewers": "ann", "due_at": "2026-12-01T18:00"}  # fmt: skip
    response = client.post("/queues/new/", form)
    queue = Queue.objects.get()
    assert response["Location"] == f"/queues/{queue.pk}/" and queue.items.count() == 2
    html = client.get(f"/queues/{queue.pk}/").content.decode()
    assert "ann" in html and "random · 2 in all · seed 1" in " ".join(html.split())
    assert annotator_client.get(f"/queues/{queue.pk}/")["Location"] == f"/queues/{queue.pk}/review/"
    assert "check" in annotator_client.get("/queues/").content.decode()
    assert client.get(f"/queues/{queue.pk}/review/").status_code == 403
    form = {"do": "save", "name": "second check", "due_at": "30 November", "reservation_minutes": "5"}
    refused = client.post(f"/queues/{queue.pk}/update/", form)
    html = refused.content.decode()
    assert refused.status_code == 400 and "“Due” must be a time such as 2026-11-30T18:00." in html
    assert 'value="second check"' in html and 'value="30 November"' in html, "what was typed stays"
    assert 'value="ann" checked' not in html and "<b>check</b>" in html
    client.post(f"/queues/{queue.pk}/update/", {**form, "due_at": "2026-11-30 18:00", "reviewers": "ann"})
    queue.refresh_from_db()
    assert (queue.name, queue.reservation_minutes) == ("second check", 5) and queue.reviewers.get().username == "ann"
    client.post(f"/queues/{queue.pk}/update/", {"do": "close"})
    _item, html = open_item(annotator_client, queue)
    assert "This queue is closed." in html
    assert annotator_client.post(f"/queues/{queue.pk}/update/", {"do": "reopen"}).status_code == 403


def test_two_leads_who_save_a_queue_keep_what_the_other_changed(run: Run, lead: User, annotator_client: Client) -> None:
    queue = create_queue(run, lead, reviewers=["ann"], due_at="2026-12-01T18:00")
    builders.member(run.project, "bob", "annotator")
    client = Client()
    client.force_login(lead)
    url, update = f"/queues/{queue.pk}/", f"/queues/{queue.pk}/update/"
    shown = read_fields(client.get(url).content.decode())
    assert shown["seen_reviewers"] == shown["reviewers"] == ["ann"] and shown["seen_name"] == ["check"]
    client.post(update, {**shown, "do": "save", "reviewers": ["ann", "bob"]})
    client.post(update, {**shown, "do": "save", "due_at": "2026-12-02 18:00"})
    queue.refresh_from_db()
    assert sorted(user.username for user in queue.reviewers.all()) == ["ann", "bob"]
    assert queue.due_at is not None and queue.due_at.day == 2
    refused = client.post(update, {**shown, "do": "save", "reviewers": [], "due_at": "soon"})
    again = read_fields(refused.content.decode())
    assert refused.status_code == 400 and again["seen_due_at"] == shown["seen_due_at"]
    client.post(update, {**again, "do": "save", "due_at": "2026-12-03 18:00"})
    assert queue.reviewers.get().username == "bob", "the other lead's reviewer stays"
    client.post(update, {**shown, "do": "save", "due_at": "", "seen_due_at": ""})
    queue.refresh_from_db()
    assert queue.due_at is not None and queue.due_at.day == 3, "what nobody edited stays"


def test_a_reviewer_who_left_the_project_stays_until_a_lead_removes_them(
    run: Run, lead: User, annotator_client: Client
) -> None:
    queue = create_queue(run, lead, reviewers=["ann"])
    Membership.objects.filter(user__username="ann").delete()
    builders.member(run.project, "bob", "annotator")
    client = Client()
    client.force_login(lead)
    update, html = f"/queues/{queue.pk}/update/", client.get(f"/queues/{queue.pk}/").content.decode()
    shown = read_fields(html)
    assert shown["reviewers"] == ["ann"] and html.count("(may no longer answer)") == 1
    User.objects.filter(username="ann").update(is_superuser=True)
    html = client.get(f"/queues/{queue.pk}/").content.decode()
    assert read_fields(html)["reviewers"] == ["ann"] and "(may no longer answer)" not in html, "an administrator may"
    client.post(update, {**shown, "do": "save", "due_at": "2026-12-02 18:00"})
    queues.update_queue(queue, lead, {"roles": ["maintainer"]})
    queue.refresh_from_db()
    assert queue.reviewers.get().username == "ann" and queue.due_at is not None and queue.roles == ["maintainer"]
    client.post(update, {**shown, "do": "save", "reviewers": ["bob"]})
    assert queue.reviewers.get().username == "bob"


def read_fields(html: str) -> dict[str, list[str]]:
    """The fields of the form of a queue's settings as a browser sends them."""
    (form,) = re.findall(r'<form class="stack".*?</form>', html, re.S)
    fields: dict[str, list[str]] = {}
    for tag in re.findall(r"<input[^>]*>", form):
        parts = dict(re.findall(r'(\w+)="(.*?)"', tag))
        if parts.get("type") != "checkbox" or " checked" in tag:
            fields.setdefault(parts["name"], []).append(unescape(parts["value"]))
    return fields


def test_the_preview_keeps_the_token_of_the_form_out_of_the_url(run: Run, lead: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(lead)
    (form,) = re.findall(r'<form class="new-queue".*?</form>', client.get("/queues/new/").content.decode(), re.S)
    (button,) = re.findall(r"<button[^>]*>Update the preview", form)
    assert "formmethod" not in button  # else a browser sends all fields in the URL
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token
    fields = {"csrfmiddlewaretoken": token[1], "do": "preview", "project": "math", "runs": run.uid, "q": "n<2"}
    response = client.post("/queues/new/", fields)
    assert response.status_code == 303 and "token" not in response["Location"]
    assert "2 items of 2 that match" in client.get(response["Location"]).content.decode()
    assert not Queue.objects.exists()


def test_the_form_of_a_new_queue_does_not_wait_for_its_preview(
    run: Run, lead: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    client.force_login(lead)
    path = f"/queues/new/?run={run.uid}&selection=random&count=2"
    with monkeypatch.context() as patch:
        patch.setattr(queues, "preview_queue", lambda *_args: pytest.fail("the form waits for the draw"))
        html = client.get(path).content.decode()
    (url,) = re.findall(r'id="queue-preview" hx-get="(.+?)"', html)
    assert unescape(url) == path and "Counting the samples that match" in html
    headers = {"HX-Request": "true", "HX-Target": "queue-preview"}
    part = client.get(path, headers=headers).content.decode()
    assert "2 items of 3 that match" in part and "<form" not in part
    assert "2 items of 3 that match" in client.get(f"{path}&do=preview").content.decode()  # without JavaScript
    push(run, [{"prompt": "p", "response": "x", "score": 0.5}], step=770077, split="eval")
    parts = client.get(path.replace("count=2", "count=2&per=step"), headers=headers).content.decode()
    assert "eval, step 770077" in parts and ">step 770077" in parts.replace("\n", "").replace(" >", ">")
    run.delete()
    assert "has no run" in client.get("/queues/new/", headers=headers).content.decode()
