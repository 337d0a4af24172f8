"""The marks of what a user has looked at, as pages answer them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Label, Project, Run, Sample, ViewedSample
from rollouts.review import viewed
from tests.dashboard.support.api_client import ApiClient
from tests.dashboard.support.review import listed, open_, page, samples
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def run(project: Project) -> Run:
    """Seven steps of four samples; the first of each is empty."""
    run = builders.run(project)
    for step in range(1, 8):
        index_file(
            run, lines(*(generation(f"ask {n}", f"{n} at {step}" * bool(n), n / 4, step) for n in range(4))), step
        )
    return run


def look(client: Client, run: Run, *ids: str) -> Any:
    return client.post(f"/runs/{run.uid}/seen/", {"samples": ",".join(ids)})


def test_what_was_open_is_marked_in_the_table_and_leaves_the_unseen(run: Run, reader: Client) -> None:
    first, second = samples(run, step__step=7)[:2]
    assert look(reader, run, first, "nope").json() == {"seen": 1}
    html = page(reader, f"/runs/{run.uid}/steps/7/")
    assert f'data-id="{first}" data-viewed="viewed"' in html
    assert f'data-id="{second}">' in html
    assert "Not viewed<b>3</b>" in collapse_spaces(html)
    assert first not in listed(page(reader, f"/runs/{run.uid}/steps/7/?q=is:unseen"))


def test_a_page_that_is_asked_again_says_what_was_looked_at_since(run: Run, reader: Client) -> None:
    address = f"/runs/{run.uid}/steps/7/"
    tag = reader.get(address)["ETag"]
    assert reader.get(address, headers={"If-None-Match": tag}).status_code == 304
    look(reader, run, samples(run, step__step=7)[0])
    assert reader.get(address, headers={"If-None-Match": tag}).status_code == 200


def test_a_group_within_what_is_unseen_is_counted_anew_when_something_was_looked_at(run: Run, reader: Client) -> None:
    first = Sample.objects.filter(step__run=run, step__step=7).order_by("ordinal")[0]
    address = f"/runs/{run.uid}/groups/7/{first.group}/?q=is:unseen"
    tag = reader.get(address)["ETag"]
    assert reader.get(address, headers={"If-None-Match": tag}).status_code == 304
    look(reader, run, first.pk)
    assert reader.get(address, headers={"If-None-Match": tag}).status_code == 200


def test_reasons_that_a_maintainer_changed_are_offered_at_once(run: Run, reader: Client, project: Project) -> None:
    address = f"/review/?run={run.uid}&upto=7&batch=1"
    tag = reader.get(address)["ETag"]
    project.reasons = [{"key": "dull", "name": "dull"}]
    project.save()
    answer = reader.get(address, headers={"If-None-Match": tag})
    assert b'name="reason" value="dull"' in answer.content


def test_an_answer_that_depends_on_who_asks_is_not_kept_for_others(run: Run, reader: Client, owner: User) -> None:
    requested = f"/runs/{run.uid}/steps/7/?q=is:seen"
    other = Client()
    other.force_login(owner)
    assert counted(page(reader, requested)) == counted(page(other, requested)) == 0
    look(reader, run, *samples(run, step__step=7)[:2])
    assert (counted(page(reader, requested)), counted(page(other, requested))) == (2, 0)


def counted(html: str) -> int:
    result = re.search(r'id="found" data-total="(\d+)"', html)
    assert result
    assert len(listed(html)) == int(result[1])
    return int(result[1])


def test_a_viewer_has_marks_of_their_own_and_gives_no_verdict(run: Run, project: Project) -> None:
    viewer = Client()
    viewer.force_login(builders.member(project, "vera", "viewer"))
    pk = samples(run)[0]
    assert look(viewer, run, pk).status_code == 200
    assert viewer.post(f"/samples/{pk}/verdict/", {"fine": "1"}).status_code == 403
    html = open_(viewer, run)
    assert "You need the annotator role to review" in html and "<fieldset disabled>" in html


def test_nobody_marks_what_they_may_not_see(run: Run, stranger: User, client: Client) -> None:
    pk = samples(run)[0]
    assert look(client, run, pk).status_code == 302
    client.force_login(stranger)
    assert look(client, run, pk).status_code == client.post(f"/samples/{pk}/verdict/", {"fine": "1"}).status_code == 404
    assert client.get(f"/review/?run={run.uid}").status_code == 404
    assert not ViewedSample.objects.exists()


def test_too_many_at_once_are_refused_in_a_sentence(run: Run, reader: Client) -> None:
    answer = look(reader, run, *(f"a{n}" for n in range(501)))
    message = "You can mark at most 500 samples at once, not 501."
    assert (answer.status_code, answer.json()["message"]) == (400, message)


def test_a_token_asks_for_its_owner(run: Run, mate: User, owner: User) -> None:
    viewed.mark_viewed(run, samples(run)[:3], mate)
    requested = f"samples/?run={run.uid}&step=all&q=is:seen"
    mine, theirs = (ApiClient.with_token(user, "read")("GET", requested).json()["results"] for user in (mate, owner))
    assert (len(mine), len(theirs)) == (3, 0)
    full = ApiClient.with_token(mate, "read")("GET", f"exports/samples/?run={run.uid}&q=is:seen&format=jsonl")
    assert len(b"".join(full).splitlines()) == 3


def test_a_verdict_is_a_flag_or_the_word_fine_and_either_means_looked_at(run: Run, reader: Client, mate: User) -> None:
    first, second = samples(run)[:2]
    assert reader.post(f"/samples/{first}/verdict/", {"fine": "1"}).status_code == 303
    response = reader.post(f"/samples/{second}/verdict/", {"reason": "truncated", "text": " so "}, headers=JSON)
    assert response.json() == {"message": "Flagged: “truncated” (bad) on 1 sample."}
    stored = Label.objects.filter(author=mate.username).values_list("sample", "name", "value", "rationale")
    assert set(stored) == {(first, "review", "ok", ""), (second, "flag.truncated", "bad", "so")}
    assert set(ViewedSample.objects.filter(user=mate).values_list("sample", flat=True)) == {first, second}
    assert undone(reader, run) == second
    assert undone(reader, run) == first


JSON = {"Accept": "application/json"}


def undone(client: Client, run: Run) -> str:
    return str(json.loads(client.post(f"/runs/{run.uid}/flags/undo/", headers=JSON).content)["sample"])


def test_a_verdict_that_cannot_be_is_refused_in_a_sentence(run: Run, reader: Client) -> None:
    response = reader.post(f"/samples/{samples(run)[0]}/verdict/", {"reason": "bored"}, headers=JSON)
    assert (response.status_code, "`reason` must be one of" in response.json()["message"]) == (400, True)
    assert not ViewedSample.objects.exists()


def test_an_address_comes_to_say_which_samples_are_meant(run: Run, reader: Client) -> None:
    response = reader.get("/review/")
    assert response.status_code == 302
    assert response["Location"] == f"/review/?run={run.uid}&upto=7&batch=1"
    before = listed(page(reader, response["Location"]))
    index_file(run, lines(generation("late", "late", -9.0, 8)), 8)
    html = page(reader, response["Location"])
    assert listed(html) == before
    assert "newer steps, up to 8" in html
