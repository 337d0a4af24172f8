"""The review queue and the marks of what somebody has looked at, as pages answer them."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import quote_plus

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Flag, Pin, Project, Run, Sample, ViewedSample
from rollouts.review import queues, viewed
from tests.dashboard.support.api_client import Ask
from tests.rollouts.support.push import generation, indexed, lines
from tests.support import builders
from tests.support.html import squeeze


@pytest.fixture
def run(project: Project) -> Run:
    """Seven steps of four samples; the first of each is empty."""
    run = builders.run(project)
    for step in range(1, 8):
        indexed(run, lines(*(generation(f"ask {n}", f"{n} at {step}" * bool(n), n / 4, step) for n in range(4))), step)
    return run


def samples(run: Run, **which: Any) -> list[str]:
    result = Sample.objects.filter(step__run=run, **which).order_by("step__step", "ordinal")
    return list(result.values_list("pk", flat=True))


def page(client: Client, path: str) -> str:
    answer = client.get(path, follow=True)
    assert answer.status_code == 200, answer.content
    return str(answer.content.decode())


def listed(html: str) -> list[str]:
    return re.findall(r'<tr id="r-\w+" data-id="(\w+)"', html)


def open_(client: Client, run: Run, query: str = "") -> str:
    return page(client, f"/review/?run={run.uid}{query}")


def find_sample(html: str) -> str:
    result = re.search(r'<article class="sample" data-id="(\w+)"', html)
    return result[1] if result else ""


# --- what was looked at -----------------------------------------------------------------------------------------------


def look(client: Client, run: Run, *ids: str) -> Any:
    return client.post(f"/runs/{run.uid}/seen/", {"samples": ",".join(ids)})


def test_what_was_open_is_marked_in_the_table_and_leaves_the_unseen(run: Run, reader: Client) -> None:
    first, second = samples(run, step__step=7)[:2]
    assert look(reader, run, first, "nope").json() == {"seen": 1}
    html = page(reader, f"/runs/{run.uid}/steps/7/")
    assert f'data-id="{first}" data-viewed="viewed"' in html
    assert f'data-id="{second}">' in html
    assert "Not viewed<b>3</b>" in squeeze(html)
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
    mine, theirs = (Ask.with_token(user, "read")("GET", requested).json()["results"] for user in (mate, owner))
    assert (len(mine), len(theirs)) == (3, 0)
    full = Ask.with_token(mate, "read")("GET", f"exports/samples/?run={run.uid}&q=is:seen&format=jsonl")
    assert len(b"".join(full).splitlines()) == 3


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_verdict_is_a_flag_or_the_word_fine_and_either_means_looked_at(run: Run, reader: Client, mate: User) -> None:
    first, second = samples(run)[:2]
    assert reader.post(f"/samples/{first}/verdict/", {"fine": "1"}).status_code == 303
    response = reader.post(f"/samples/{second}/verdict/", {"reason": "truncated", "text": " so "}, headers=JSON)
    assert response.json() == {"message": "Flagged: “truncated” (bad) on 1 sample."}
    assert Flag.objects.get().text == "so"
    assert dict(ViewedSample.objects.filter(user=mate).values_list("sample", "fine")) == {first: True, second: False}
    assert undone(reader, run) == second
    assert undone(reader, run) == first


JSON = {"Accept": "application/json"}


def undone(client: Client, run: Run) -> str:
    return str(json.loads(client.post(f"/runs/{run.uid}/flags/undo/", headers=JSON).content)["sample"])


def test_a_verdict_that_cannot_be_is_refused_in_a_sentence(run: Run, reader: Client) -> None:
    response = reader.post(f"/samples/{samples(run)[0]}/verdict/", {"reason": "bored"}, headers=JSON)
    assert (response.status_code, "`reason` must be one of" in response.json()["message"]) == (400, True)
    assert not ViewedSample.objects.exists()


# --- queues -----------------------------------------------------------------------------------------------------------


def test_an_address_comes_to_say_which_samples_are_meant(run: Run, reader: Client) -> None:
    response = reader.get("/review/")
    assert response.status_code == 302
    assert response["Location"] == f"/review/?run={run.uid}&upto=7&batch=1"
    before = listed(page(reader, response["Location"]))
    indexed(run, lines(generation("late", "late", -9.0, 8)), 8)
    html = page(reader, response["Location"])
    assert listed(html) == before
    assert "newer steps, up to 8" in html


def test_the_lowest_scores_of_the_newest_steps_come_first_with_the_first_open(run: Run, reader: Client) -> None:
    html = open_(reader, run)
    rows = listed(html)
    assert set(rows) == set(samples(run, step__step__gte=3))
    assert [Sample.objects.get(pk=pk).score for pk in rows] == sorted([0, 0.25, 0.5, 0.75] * 5)
    assert find_sample(html) == rows[0]
    assert "low score" in html and "0 of 20 · 0 %" in html


def test_what_was_judged_is_counted_and_the_next_is_open(run: Run, reader: Client, mate: User) -> None:
    rows = listed(open_(reader, run))
    viewed.approve_sample(run, rows[0], mate)
    builders.flag(rows[1], mate, reason="truncated")
    viewed.mark_viewed(run, [rows[2]], mate)  # looked at is not judged
    html = open_(reader, run)
    assert listed(html) == rows
    assert find_sample(html) == rows[2]
    assert "2 of 20 · 10 %" in html
    assert "✓ OK" in html and "⚑ truncated" in html


def test_without_script_the_verdict_goes_on_to_the_next_that_is_left(run: Run, reader: Client, mate: User) -> None:
    rows = listed(open_(reader, run))
    viewed.approve_sample(run, rows[1], mate)
    html = open_(reader, run, f"&sel={rows[0]}")
    form = html[html.index('class="verdict"') :]
    result = re.search(r'name="next" value="([^"]+)"', form)
    assert result
    target = result[1].replace("&amp;", "&")
    response = reader.post(f"/samples/{rows[0]}/verdict/", {"fine": "1", "next": target})
    assert response["Location"] == target
    assert find_sample(page(reader, target)) == rows[2]


def test_rule_hits_say_which_rule(run: Run, reader: Client) -> None:
    html = open_(reader, run, "&queue=rules")
    assert set(listed(html)) == set(samples(run, step__step__gte=3, chars=0))
    assert "empty response" in html


def test_a_seed_draws_the_same_samples_and_another_one_others(
    run: Run, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = [listed(open_(reader, run, f"&queue=random&seed={seed}")) for seed in (1, 1, 2, 3, 4)]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) > 1
    assert {frozenset(draw) for draw in draws} == {frozenset(draws[0])}
    monkeypatch.setattr(queues, "BATCH_SIZE", 5)
    assert len({frozenset(listed(open_(reader, run, f"&queue=random&seed={seed}"))) for seed in range(1, 9)}) > 1
    assert re.search(r"seed=\d+", reader.get(f"/review/?run={run.uid}&queue=random")["Location"])


def test_flags_of_others_are_a_queue_and_ones_own_are_not(run: Run, reader: Client, mate: User, owner: User) -> None:
    theirs, mine = samples(run)[:2]
    builders.flag(theirs, owner, reason="reward-hack")
    builders.flag(mine, mate)
    html = open_(reader, run, "&queue=flagged")
    assert listed(html) == [theirs]
    assert "olga: reward hack" in html
    builders.flag(theirs, mate)
    own = open_(reader, run, "&queue=flagged")
    assert listed(own) == [theirs] and "mina:" not in own


def test_samples_of_pinned_steps_are_a_queue(run: Run, reader: Client, owner: User) -> None:
    html = open_(reader, run, "&queue=pinned")
    assert listed(html) == [] and "No step of this run is pinned" in html
    step = run.steps.get(step=2)
    Pin.objects.create(run=run, project=run.project, attempt=step.attempt, split="train", step=2, user=owner)
    assert set(listed(open_(reader, run, "&queue=pinned"))) == set(samples(run, step__step=2))


def test_any_query_is_a_queue(run: Run, reader: Client) -> None:
    html = open_(reader, run, "&q=step:2+score>0.6")
    assert listed(html) == samples(run, step__step=2, score=0.75)
    assert "matches your query" in html
    assert "The query is incomplete" in open_(reader, run, "&q=score<")


@pytest.mark.parametrize("q", ["", "score>0.6", "score>0.6 or is:empty"])
def test_the_result_of_a_step_is_reviewed_by_its_link(run: Run, reader: Client, q: str) -> None:
    there = page(reader, f"/runs/{run.uid}/steps/2/?q={quote_plus(q)}")
    link = re.search(r'href="(/review/[^"]+)" title="Review these samples one by one"', there)
    assert link
    assert sorted(listed(page(reader, unescape(link[1])))) == sorted(listed(there))


def test_a_long_queue_is_gone_through_in_batches(
    run: Run, reader: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "BATCH_SIZE", 8)
    first = listed(open_(reader, run))
    assert len(first) == 8
    for pk in first:
        viewed.approve_sample(run, pk, mate)
    done = open_(reader, run, "&upto=7&batch=1")
    assert "Batch complete." in done and listed(done) == first
    html = open_(reader, run)
    assert "batch 2 of 3" in html and not set(first).intersection(listed(html))
    assert "batch 3 of 3" in open_(reader, run, "&upto=7&batch=99999")
    for pk in samples(run, step__step__gte=3):
        viewed.approve_sample(run, pk, mate)
    over = open_(reader, run)
    assert "batch 3 of 3" in over and "Batch complete." in over and "Next batch" not in over


def test_a_panel_that_asks_again_gets_the_list_alone(run: Run, reader: Client) -> None:
    response = reader.get("/review/", {"run": run.uid, "upto": 7, "batch": 1}, headers=PANEL)
    assert len(listed(response.content.decode())) == 20
    assert b"<html" not in response.content and b"<article" not in response.content


PANEL = {"HX-Request": "true", "HX-Target": "queue"}


def test_who_has_no_run_is_told_what_a_queue_is(stranger: User, client: Client) -> None:
    client.force_login(stranger)
    assert "none of your runs has samples" in page(client, "/review/")


def test_the_run_that_is_shown_is_the_one_that_is_chosen(run: Run, project: Project, reader: Client) -> None:
    empty = builders.run(project, "empty")
    rendered = page(reader, f"/review/?run={empty.uid}")
    assert re.findall(r'<option value="([^"]*)" selected', rendered) == [empty.uid]
    assert f'<option value="{run.uid}">' in rendered


def test_a_sample_of_another_run_is_not_here(run: Run, project: Project, reader: Client) -> None:
    other = builders.run(project, "other")
    indexed(other, lines(generation("a", "b")), 1)
    assert reader.get(f"/review/?run={run.uid}&upto=7&batch=1&sel={samples(other)[0]}").status_code == 404


# --- a batch stands still ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["is:unseen", "-is:flagged score<0.6", "-reason:reward-hack -is:fine"])
def test_a_queue_of_what_judging_changes_keeps_its_samples(run: Run, reader: Client, mate: User, q: str) -> None:
    response = reader.get("/review/", {"run": run.uid, "q": q})
    address = response["Location"]
    before = listed(page(reader, address))
    viewed.mark_viewed(run, before[:1], mate)
    builders.flag(before[0], mate, reason="reward-hack")
    viewed.approve_sample(run, before[1], mate)
    html = page(reader, address)
    assert listed(html) == before and len(before) > 2
    assert f"2 of {len(before)}" in html
    assert listed(reader.get(address, headers=PANEL).content.decode()) == before
    assert before[0] not in listed(open_(reader, run, f"&q={quote_plus(q)}"))


def test_such_a_queue_goes_on_with_what_is_left(
    run: Run, reader: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "BATCH_SIZE", 8)
    address = reader.get("/review/", {"run": run.uid, "q": "is:unseen"})["Location"]
    first = listed(page(reader, address))
    for pk in first:
        viewed.approve_sample(run, pk, mate)
    done = page(reader, address)
    link = re.search(r'href="(/review/[^"]+)" data-key="n"', done)
    assert "Batch complete." in done and link
    then = listed(page(reader, unescape(link[1])))
    assert len(then) == 8 and not set(then).intersection(first)


@pytest.mark.parametrize("ids", ["zzzzzzzzzz", "x", "%27,%00,..", "a" * 4000])
def test_ids_that_name_nothing_are_an_empty_queue(run: Run, reader: Client, ids: str) -> None:
    html = page(reader, f"/review/?run={run.uid}&q=is:unseen&upto=7&batch=1&ids={ids}")
    assert listed(html) == [] and "This queue is empty." in html


def test_ids_in_capitals_name_the_same_samples(run: Run, reader: Client) -> None:
    one, other = samples(run)[:2]
    html = page(reader, f"/review/?run={run.uid}&q=is:unseen&upto=7&batch=1&ids={other[:10].upper()},{one[:10]}")
    assert listed(html) == [other, one]


def test_where_a_query_finds_nothing_the_queue_says_so(run: Run, reader: Client) -> None:
    assert "This queue is empty." in open_(reader, run, "&q=is:flagged")


def test_what_arrives_does_not_move_the_queue_of_a_query(run: Run, reader: Client) -> None:
    address = reader.get("/review/", {"run": run.uid, "q": "score<0.6 or is:empty"})["Location"]
    before = listed(page(reader, address))
    indexed(run, lines(generation("ask", "low", -1, 8)), 8)
    assert listed(page(reader, address)) == before
    assert len(listed(open_(reader, run, "&q=score<0.6"))) == len(before) + 1
