"""Flags on pages, without script: who sets and withdraws them, and what a page says."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.models import AuditEntry, Label, Project, Run, Sample
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    index_file(run, lines(generation(response="a"), generation(response="b", score=0.0)))
    return run


@pytest.fixture
def sample(run: Run) -> Sample:
    return Sample.objects.filter(step__run=run).order_by("score")[0]


def post_flag(client: Client, sample: Sample, **fields: str) -> int:
    return client.post(f"/samples/{sample.pk}/flags/", {"next": f"/samples/{sample.pk}/", **fields}).status_code


def test_a_flag_is_shown_on_sample_row_and_step(client: Client, mate: User, run: Run, sample: Sample) -> None:
    client.force_login(mate)
    assert post_flag(client, sample, reason="reward-hack", text="copies the question") == 303
    page = client.get(f"/runs/{run.uid}/steps/1/").content.decode()
    assert "copies the question" in page
    assert 'title="1 flag"' in page
    assert re.search(r"flagged</dt><dd><b>1</b>", page)


def test_a_flag_is_withdrawn_by_its_author_and_stays_in_the_audit_log(
    client: Client, mate: User, run: Run, sample: Sample
) -> None:
    client.force_login(mate)
    post_flag(client, sample, reason="other")
    raised = Label.objects.get()
    assert client.post(f"/flags/{raised.pk}/withdraw/").status_code == 303
    raised.refresh_from_db()
    assert raised.withdrawn_at
    assert AuditEntry.objects.filter(verb="flag.withdraw").exists()


def test_a_wrong_reason_is_explained_and_stores_no_flag(client: Client, mate: User, run: Run, sample: Sample) -> None:
    client.force_login(mate)
    response = client.post(f"/samples/{sample.pk}/flags/", {"reason": "none-such"}, follow=True)
    assert "must be one of" in response.content.decode()
    assert not Label.objects.exists()


def test_a_message_is_shown_once_and_not_cached_by_the_browser(client: Client, mate: User, sample: Sample) -> None:
    client.force_login(mate)
    page = f"/samples/{sample.pk}/"
    stored = {"If-None-Match": client.get(page).headers["ETag"]}
    post_flag(client, sample, reason="no such reason")
    result = client.get(page, headers=stored)
    assert 'class="banner error"' in result.content.decode()
    assert "ETag" not in result.headers
    assert client.get(page, headers=stored).status_code == 304


def test_a_viewer_sees_why_the_button_is_missing_and_cannot_flag(
    client: Client, project: Project, run: Run, sample: Sample
) -> None:
    client.force_login(builders.member(project, "vera", "viewer"))
    page = client.get(f"/samples/{sample.pk}/").content.decode()
    assert "You need the annotator role to flag" in page
    assert "data-flag-form" not in page
    assert post_flag(client, sample, reason="other") == 403


def test_a_stranger_can_neither_flag_nor_withdraw(
    client: Client, mate: User, stranger: User, run: Run, sample: Sample
) -> None:
    client.force_login(mate)
    post_flag(client, sample, reason="other")
    client.force_login(stranger)
    assert post_flag(client, sample, reason="other") == 404
    assert client.post(f"/flags/{Label.objects.get().pk}/withdraw/").status_code == 404


def test_a_blind_reviewer_cannot_find_out_which_flags_exist(
    client: Client, mate: User, owner: User, run: Run, sample: Sample
) -> None:
    queue = queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "is_blind": True})
    flagged = builders.flag(sample.pk, owner, label="bad")
    client.force_login(mate)
    assert [client.post(f"/flags/{pk}/withdraw/").status_code for pk in (flagged.pk, flagged.pk + 1)] == [404, 404]
    queues.close_queue(queue, owner)
    assert client.post(f"/flags/{flagged.pk}/withdraw/").status_code == 403


def test_an_annotator_cannot_withdraw_the_flag_of_another_user(
    client: Client, owner: User, mate: User, run: Run, sample: Sample
) -> None:
    client.force_login(owner)
    post_flag(client, sample, reason="other")
    client.force_login(mate)
    assert client.post(f"/flags/{Label.objects.get().pk}/withdraw/").status_code == 403


def test_a_form_redirects_only_to_our_own_pages(client: Client, mate: User, run: Run, sample: Sample) -> None:
    client.force_login(mate)
    response = client.post(f"/samples/{sample.pk}/flags/", {"reason": "other", "next": "//elsewhere.example/"})
    assert response.headers["Location"] == f"/samples/{sample.pk}/"


def test_a_form_without_a_csrf_token_is_refused_with_an_explanation(mate: User, run: Run, sample: Sample) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(mate)
    response = strict.post(f"/samples/{sample.pk}/flags/", {"reason": "other"})
    assert response.status_code == 403
    assert "Reload the page and try again" in response.content.decode()
