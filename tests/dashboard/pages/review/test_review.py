"""The quick lists, as pages answer it."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote_plus

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Label, Pin, Project, Run, Sample
from rollouts.review import quick_lists, viewed
from tests.dashboard.support.review import find_sample, listed, open_, page, samples
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    """Seven steps of four samples; the first of each is empty."""
    run = builders.run(project)
    for step in range(1, 8):
        index_file(
            run, lines(*(generation(f"ask {n}", f"{n} at {step}" * bool(n), n / 4, step) for n in range(4))), step
        )
    return run


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


@pytest.mark.parametrize("answer", ["fine", "cannot-judge"])
def test_the_comment_on_an_answer_that_is_no_flag_is_stored(run: Run, reader: Client, answer: str) -> None:
    sample = samples(run)[0]
    reader.post(f"/samples/{sample}/verdict/", {answer: "1", "text": " checked by hand\n"})
    reader.post(f"/samples/{sample}/verdict/", {answer: "1"})  # the field of the comment is empty by then
    label = Label.objects.get(sample=sample)
    assert (label.name, label.rationale) == ("review", "checked by hand")


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
    monkeypatch.setattr(quick_lists, "BATCH_SIZE", 5)
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
    Label.objects.filter(sample=theirs, user=mate).update(author="vera")  # imported by mina
    assert "vera: bad" in open_(reader, run, "&queue=flagged")


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
    monkeypatch.setattr(quick_lists, "BATCH_SIZE", 8)
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
    right = builders.run(project, "other")
    index_file(right, lines(generation("a", "b")), 1)
    assert reader.get(f"/review/?run={run.uid}&upto=7&batch=1&sel={samples(right)[0]}").status_code == 404


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
    monkeypatch.setattr(quick_lists, "BATCH_SIZE", 8)
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
    assert listed(html) == [] and "This list is empty." in html


def test_ids_in_capitals_name_the_same_samples(run: Run, reader: Client) -> None:
    left, right = samples(run)[:2]
    html = page(reader, f"/review/?run={run.uid}&q=is:unseen&upto=7&batch=1&ids={right[:10].upper()},{left[:10]}")
    assert listed(html) == [right, left]


def test_where_a_query_finds_nothing_the_queue_says_so(run: Run, reader: Client) -> None:
    assert "This list is empty." in open_(reader, run, "&q=is:flagged")


def test_what_arrives_does_not_move_the_queue_of_a_query(run: Run, reader: Client) -> None:
    address = reader.get("/review/", {"run": run.uid, "q": "score<0.6 or is:empty"})["Location"]
    before = listed(page(reader, address))
    index_file(run, lines(generation("ask", "low", -1, 8)), 8)
    assert listed(page(reader, address)) == before
    assert len(listed(open_(reader, run, "&q=score<0.6"))) == len(before) + 1
