"""The pages of the quick lists of the review."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote_plus

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Label, Pin, Project, Run, Sample
from rollouts.review import quick_lists, viewed
from tests.dashboard.support.review import find_open_sample, get_page, get_review_page, list_row_ids, list_sample_ids
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
    html = get_review_page(reader, run)
    rows = list_row_ids(html)
    assert set(rows) == set(list_sample_ids(run, step__step__gte=3))
    assert [Sample.objects.get(pk=pk).score for pk in rows] == sorted([0, 0.25, 0.5, 0.75] * 5)
    assert find_open_sample(html) == rows[0]
    assert "low score" in html and "0 of 20 · 0 %" in html


def test_judged_samples_are_counted_and_the_next_one_is_open(run: Run, reader: Client, mate: User) -> None:
    rows = list_row_ids(get_review_page(reader, run))
    viewed.approve_sample(run, rows[0], mate)
    builders.flag(rows[1], mate, reason="truncated")
    viewed.mark_viewed(run, [rows[2]], mate)  # a viewed sample is not judged
    html = get_review_page(reader, run)
    assert list_row_ids(html) == rows
    assert find_open_sample(html) == rows[2]
    assert "2 of 20 · 10 %" in html
    assert "✓ OK" in html and "⚑ truncated" in html


def test_without_script_a_verdict_opens_the_next_unjudged_sample(run: Run, reader: Client, mate: User) -> None:
    rows = list_row_ids(get_review_page(reader, run))
    viewed.approve_sample(run, rows[1], mate)
    html = get_review_page(reader, run, f"&sel={rows[0]}")
    form = html[html.index('class="verdict"') :]
    result = re.search(r'name="next" value="([^"]+)"', form)
    assert result
    target = result[1].replace("&amp;", "&")
    response = reader.post(f"/samples/{rows[0]}/verdict/", {"fine": "1", "next": target})
    assert response["Location"] == target
    assert find_open_sample(get_page(reader, target)) == rows[2]


@pytest.mark.parametrize("answer", ["fine", "cannot-judge"])
def test_the_comment_on_an_answer_that_is_no_flag_is_stored(run: Run, reader: Client, answer: str) -> None:
    sample = list_sample_ids(run)[0]
    reader.post(f"/samples/{sample}/verdict/", {answer: "1", "text": " checked by hand\n"})
    reader.post(f"/samples/{sample}/verdict/", {answer: "1"})  # the field of the comment is empty by then
    label = Label.objects.get(sample=sample)
    assert (label.name, label.rationale) == ("review", "checked by hand")


def test_rule_hits_say_which_rule(run: Run, reader: Client) -> None:
    html = get_review_page(reader, run, "&queue=rules")
    assert set(list_row_ids(html)) == set(list_sample_ids(run, step__step__gte=3, chars=0))
    assert "empty response" in html


def test_a_seed_draws_the_same_samples_and_another_one_others(
    run: Run, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = [list_row_ids(get_review_page(reader, run, f"&queue=random&seed={seed}")) for seed in (1, 1, 2, 3, 4)]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) > 1
    assert {frozenset(draw) for draw in draws} == {frozenset(draws[0])}
    monkeypatch.setattr(quick_lists, "BATCH_SIZE", 5)
    assert (
        len(
            {
                frozenset(list_row_ids(get_review_page(reader, run, f"&queue=random&seed={seed}")))
                for seed in range(1, 9)
            }
        )
        > 1
    )
    assert re.search(r"seed=\d+", reader.get(f"/review/?run={run.uid}&queue=random")["Location"])


def test_the_flagged_list_has_only_samples_that_others_flagged(
    run: Run, reader: Client, mate: User, owner: User
) -> None:
    flagged_by_other, flagged_by_reader = list_sample_ids(run)[:2]
    builders.flag(flagged_by_other, owner, reason="reward-hack")
    builders.flag(flagged_by_reader, mate)
    html = get_review_page(reader, run, "&queue=flagged")
    assert list_row_ids(html) == [flagged_by_other]
    assert "olga: reward hack" in html
    builders.flag(flagged_by_other, mate)
    own = get_review_page(reader, run, "&queue=flagged")
    assert list_row_ids(own) == [flagged_by_other] and "mina:" not in own
    Label.objects.filter(sample=flagged_by_other, user=mate).update(author="vera")  # imported by mina
    assert "vera: bad" in get_review_page(reader, run, "&queue=flagged")


def test_samples_of_pinned_steps_can_be_reviewed(run: Run, reader: Client, owner: User) -> None:
    html = get_review_page(reader, run, "&queue=pinned")
    assert list_row_ids(html) == [] and "No step of this run is pinned" in html
    step = run.steps.get(step=2)
    Pin.objects.create(run=run, project=run.project, attempt=step.attempt, split="train", step=2, user=owner)
    assert set(list_row_ids(get_review_page(reader, run, "&queue=pinned"))) == set(list_sample_ids(run, step__step=2))


def test_the_matches_of_any_query_can_be_reviewed(run: Run, reader: Client) -> None:
    html = get_review_page(reader, run, "&q=step:2+score>0.6")
    assert list_row_ids(html) == list_sample_ids(run, step__step=2, score=0.75)
    assert "matches your query" in html
    assert "The query is incomplete" in get_review_page(reader, run, "&q=score<")


@pytest.mark.parametrize("q", ["", "score>0.6", "score>0.6 or is:empty"])
def test_the_result_of_a_step_is_reviewed_by_its_link(run: Run, reader: Client, q: str) -> None:
    step_page = get_page(reader, f"/runs/{run.uid}/steps/2/?q={quote_plus(q)}")
    link = re.search(r'href="(/review/[^"]+)" title="Review these samples one by one"', step_page)
    assert link
    assert sorted(list_row_ids(get_page(reader, unescape(link[1])))) == sorted(list_row_ids(step_page))


def test_a_long_list_is_reviewed_in_batches(
    run: Run, reader: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_lists, "BATCH_SIZE", 8)
    first = list_row_ids(get_review_page(reader, run))
    assert len(first) == 8
    for pk in first:
        viewed.approve_sample(run, pk, mate)
    done = get_review_page(reader, run, "&upto=7&batch=1")
    assert "Batch complete." in done and list_row_ids(done) == first
    html = get_review_page(reader, run)
    assert "batch 2 of 3" in html and not set(first).intersection(list_row_ids(html))
    assert "batch 3 of 3" in get_review_page(reader, run, "&upto=7&batch=99999")
    for pk in list_sample_ids(run, step__step__gte=3):
        viewed.approve_sample(run, pk, mate)
    last = get_review_page(reader, run)
    assert "batch 3 of 3" in last and "Batch complete." in last and "Next batch" not in last


def test_the_updated_panel_has_only_the_list(run: Run, reader: Client) -> None:
    response = reader.get("/review/", {"run": run.uid, "upto": 7, "batch": 1}, headers=PANEL)
    assert len(list_row_ids(response.content.decode())) == 20
    assert b"<html" not in response.content and b"<article" not in response.content


PANEL = {"HX-Request": "true", "HX-Target": "queue"}


def test_a_user_without_runs_gets_an_explanation(stranger: User, client: Client) -> None:
    client.force_login(stranger)
    assert "none of your runs has samples" in get_page(client, "/review/")


def test_the_shown_run_is_selected_in_the_menu(run: Run, project: Project, reader: Client) -> None:
    empty = builders.run(project, "empty")
    rendered = get_page(reader, f"/review/?run={empty.uid}")
    assert re.findall(r'<option value="([^"]*)" selected', rendered) == [empty.uid]
    assert f'<option value="{run.uid}">' in rendered


def test_a_sample_of_another_run_is_not_found(run: Run, project: Project, reader: Client) -> None:
    other_run = builders.run(project, "other")
    index_file(other_run, lines(generation("a", "b")), 1)
    assert reader.get(f"/review/?run={run.uid}&upto=7&batch=1&sel={list_sample_ids(other_run)[0]}").status_code == 404


# --- a batch does not change ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["is:unseen", "-is:flagged score<0.6", "-reason:reward-hack -is:fine"])
def test_a_list_whose_query_depends_on_verdicts_keeps_its_samples(run: Run, reader: Client, mate: User, q: str) -> None:
    response = reader.get("/review/", {"run": run.uid, "q": q})
    address = response["Location"]
    before = list_row_ids(get_page(reader, address))
    viewed.mark_viewed(run, before[:1], mate)
    builders.flag(before[0], mate, reason="reward-hack")
    viewed.approve_sample(run, before[1], mate)
    html = get_page(reader, address)
    assert list_row_ids(html) == before and len(before) > 2
    assert f"2 of {len(before)}" in html
    assert list_row_ids(reader.get(address, headers=PANEL).content.decode()) == before
    assert before[0] not in list_row_ids(get_review_page(reader, run, f"&q={quote_plus(q)}"))


def test_the_next_batch_of_unseen_samples_has_other_samples(
    run: Run, reader: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_lists, "BATCH_SIZE", 8)
    address = reader.get("/review/", {"run": run.uid, "q": "is:unseen"})["Location"]
    first = list_row_ids(get_page(reader, address))
    for pk in first:
        viewed.approve_sample(run, pk, mate)
    done = get_page(reader, address)
    link = re.search(r'href="(/review/[^"]+)" data-key="n"', done)
    assert "Batch complete." in done and link
    second = list_row_ids(get_page(reader, unescape(link[1])))
    assert len(second) == 8 and not set(second).intersection(first)


@pytest.mark.parametrize("ids", ["zzzzzzzzzz", "x", "%27,%00,..", "a" * 4000])
def test_unknown_ids_give_an_empty_list(run: Run, reader: Client, ids: str) -> None:
    html = get_page(reader, f"/review/?run={run.uid}&q=is:unseen&upto=7&batch=1&ids={ids}")
    assert list_row_ids(html) == [] and "This list is empty." in html


def test_ids_in_capitals_name_the_same_samples(run: Run, reader: Client) -> None:
    left, right = list_sample_ids(run)[:2]
    html = get_page(reader, f"/review/?run={run.uid}&q=is:unseen&upto=7&batch=1&ids={right[:10].upper()},{left[:10]}")
    assert list_row_ids(html) == [right, left]


def test_a_query_without_matches_says_that_the_list_is_empty(run: Run, reader: Client) -> None:
    assert "This list is empty." in get_review_page(reader, run, "&q=is:flagged")


def test_new_samples_do_not_change_an_open_list(run: Run, reader: Client) -> None:
    address = reader.get("/review/", {"run": run.uid, "q": "score<0.6 or is:empty"})["Location"]
    before = list_row_ids(get_page(reader, address))
    index_file(run, lines(generation("ask", "low", -1, 8)), 8)
    assert list_row_ids(get_page(reader, address)) == before
    assert len(list_row_ids(get_review_page(reader, run, "&q=score<0.6"))) == len(before) + 1
