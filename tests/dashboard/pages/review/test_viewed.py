"""The marks of samples that a user has viewed, on pages."""

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
from tests.dashboard.support.review import get_page, get_review_page, list_row_ids, list_sample_ids
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


def mark_seen(client: Client, run: Run, *ids: str) -> Any:
    return client.post(f"/runs/{run.uid}/seen/", {"samples": ",".join(ids)})


def test_a_viewed_sample_is_marked_in_the_table_and_no_longer_unseen(run: Run, reader: Client) -> None:
    first, second = list_sample_ids(run, step__step=7)[:2]
    assert mark_seen(reader, run, first, "nope").json() == {"seen": 1}
    html = get_page(reader, f"/runs/{run.uid}/steps/7/")
    assert f'data-id="{first}" data-viewed="viewed"' in html
    assert f'data-id="{second}">' in html
    assert "Not viewed<b>3</b>" in collapse_spaces(html)
    assert first not in list_row_ids(get_page(reader, f"/runs/{run.uid}/steps/7/?q=is:unseen"))


def test_a_cached_page_is_sent_again_after_a_sample_was_viewed(run: Run, reader: Client) -> None:
    address = f"/runs/{run.uid}/steps/7/"
    etag = reader.get(address)["ETag"]
    assert reader.get(address, headers={"If-None-Match": etag}).status_code == 304
    mark_seen(reader, run, list_sample_ids(run, step__step=7)[0])
    assert reader.get(address, headers={"If-None-Match": etag}).status_code == 200


def test_a_cached_group_page_of_unseen_samples_is_sent_again_after_one_was_viewed(run: Run, reader: Client) -> None:
    first = Sample.objects.filter(step__run=run, step__step=7).order_by("ordinal")[0]
    address = f"/runs/{run.uid}/groups/7/{first.group}/?q=is:unseen"
    etag = reader.get(address)["ETag"]
    assert reader.get(address, headers={"If-None-Match": etag}).status_code == 304
    mark_seen(reader, run, first.pk)
    assert reader.get(address, headers={"If-None-Match": etag}).status_code == 200


def test_reasons_that_a_maintainer_changed_are_offered_at_once(run: Run, reader: Client, project: Project) -> None:
    address = f"/review/?run={run.uid}&upto=7&batch=1"
    etag = reader.get(address)["ETag"]
    project.reasons = [{"key": "dull", "name": "dull"}]
    project.save()
    answer = reader.get(address, headers={"If-None-Match": etag})
    assert b'name="reason" value="dull"' in answer.content


def test_a_result_that_depends_on_the_user_is_not_cached_for_others(run: Run, reader: Client, owner: User) -> None:
    path = f"/runs/{run.uid}/steps/7/?q=is:seen"
    other = Client()
    other.force_login(owner)
    assert read_count(get_page(reader, path)) == read_count(get_page(other, path)) == 0
    mark_seen(reader, run, *list_sample_ids(run, step__step=7)[:2])
    assert (read_count(get_page(reader, path)), read_count(get_page(other, path))) == (2, 0)


def read_count(html: str) -> int:
    result = re.search(r'id="found" data-total="(\d+)"', html)
    assert result
    assert len(list_row_ids(html)) == int(result[1])
    return int(result[1])


def test_a_viewer_has_marks_of_their_own_and_gives_no_verdict(run: Run, project: Project) -> None:
    viewer = Client()
    viewer.force_login(builders.member(project, "vera", "viewer"))
    pk = list_sample_ids(run)[0]
    assert mark_seen(viewer, run, pk).status_code == 200
    assert viewer.post(f"/samples/{pk}/verdict/", {"fine": "1"}).status_code == 403
    html = get_review_page(viewer, run)
    assert "You need the annotator role to review" in html and "<fieldset disabled>" in html


def test_users_cannot_mark_samples_that_they_may_not_see(run: Run, stranger: User, client: Client) -> None:
    pk = list_sample_ids(run)[0]
    assert mark_seen(client, run, pk).status_code == 302
    client.force_login(stranger)
    assert (
        mark_seen(client, run, pk).status_code
        == client.post(f"/samples/{pk}/verdict/", {"fine": "1"}).status_code
        == 404
    )
    assert client.get(f"/review/?run={run.uid}").status_code == 404
    assert not ViewedSample.objects.exists()


def test_too_many_marks_at_once_are_refused_with_an_explanation(run: Run, reader: Client) -> None:
    answer = mark_seen(reader, run, *(f"a{n}" for n in range(501)))
    message = "You can mark at most 500 samples at once, not 501."
    assert (answer.status_code, answer.json()["message"]) == (400, message)


def test_a_query_with_a_token_uses_the_marks_of_its_owner(run: Run, mate: User, owner: User) -> None:
    viewed.mark_viewed(run, list_sample_ids(run)[:3], mate)
    path = f"samples/?run={run.uid}&step=all&q=is:seen"
    seen_by_mate, seen_by_owner = (
        ApiClient.with_token(user, "read")("GET", path).json()["results"] for user in (mate, owner)
    )
    assert (len(seen_by_mate), len(seen_by_owner)) == (3, 0)
    full = ApiClient.with_token(mate, "read")("GET", f"exports/samples/?run={run.uid}&q=is:seen&format=jsonl")
    assert len(b"".join(full).splitlines()) == 3


def test_a_verdict_is_a_flag_or_fine_and_marks_the_sample_as_viewed(run: Run, reader: Client, mate: User) -> None:
    first, second = list_sample_ids(run)[:2]
    assert reader.post(f"/samples/{first}/verdict/", {"fine": "1"}).status_code == 303
    response = reader.post(f"/samples/{second}/verdict/", {"reason": "truncated", "text": " so "}, headers=JSON)
    assert response.json() == {"message": "Flagged: “truncated” (bad) on 1 sample."}
    stored = Label.objects.filter(author=mate.username).values_list("sample", "name", "value", "rationale")
    assert set(stored) == {(first, "review", "ok", ""), (second, "flag.truncated", "bad", "so")}
    assert set(ViewedSample.objects.filter(user=mate).values_list("sample", flat=True)) == {first, second}
    assert undo_flag(reader, run) == second
    assert undo_flag(reader, run) == first


JSON = {"Accept": "application/json"}


def undo_flag(client: Client, run: Run) -> str:
    return str(json.loads(client.post(f"/runs/{run.uid}/flags/undo/", headers=JSON).content)["sample"])


def test_an_invalid_verdict_is_refused_with_an_explanation(run: Run, reader: Client) -> None:
    response = reader.post(f"/samples/{list_sample_ids(run)[0]}/verdict/", {"reason": "bored"}, headers=JSON)
    assert (response.status_code, "`reason` must be one of" in response.json()["message"]) == (400, True)
    assert not ViewedSample.objects.exists()


def test_the_review_page_redirects_to_a_url_that_fixes_its_samples(run: Run, reader: Client) -> None:
    response = reader.get("/review/")
    assert response.status_code == 302
    assert response["Location"] == f"/review/?run={run.uid}&upto=7&batch=1"
    before = list_row_ids(get_page(reader, response["Location"]))
    index_file(run, lines(generation("late", "late", -9.0, 8)), 8)
    html = get_page(reader, response["Location"])
    assert list_row_ids(html) == before
    assert "newer steps, up to 8" in html
