"""The search over all runs of a project: newest run first, part by part, only in runs that the user may see."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import StreamingHttpResponse
from django.test import Client

from dashboard.api.views import search as api_search
from dashboard.pages.search import views
from rollouts.models import Project, Run, Sample, SavedView
from rollouts.query.completion import projects as project_completion
from rollouts.runs import search_runs
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.push import index_file, lines
from tests.support import builders


def create_run_with_texts(project: Project, name: str, *responses: str) -> Run:
    run = builders.run(project, name)
    rows = [{"prompt": "p", "response": text, "score": n} for n, text in enumerate(responses)]
    index_file(run, lines(*rows), 1)
    return run


@pytest.fixture
def runs(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    monkeypatch.setattr(views, "PART_SECONDS", 60)
    texts = [("a quokka", "b"), ("nothing",), ("two quokkas", "one quokka")]
    return [create_run_with_texts(project, f"run-{n}", *own) for n, own in enumerate(texts)]


def get_page(client: Client, url: str, status: int = 200, **headers: str) -> str:
    response = client.get(url, headers=headers)
    assert response.status_code == status
    return unescape(response.content.decode())


def test_all_runs_are_searched_the_newest_first_with_counts(runs: list[Run], client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, "/search/?project=math&q=quokka")
    assert re.findall(r">(run-\d)</a>", page) == ["run-2", "run-0"]
    assert "2 matches" in page and "1 match" in page and "Runs searched: 3. Matches: 3." in page
    assert f"/runs/{runs[2].uid}/steps/all/?q=quokka&sel=" in page
    assert "Runs searched: 3. No sample matches" in get_page(client, "/search/?project=math&q=wombat")


def test_matches_of_both_splits_are_counted_and_linked_apart(project: Project, client: Client, mate: User) -> None:
    run = create_run_with_texts(project, "both", "a quokka", "two quokkas")
    row = {"prompt": "p", "response": "a quokka of the evaluation", "score": 1}
    index_file(run, lines(row), 1, split="eval", source="eval/1")
    client.force_login(mate)
    page, link = get_page(client, "/search/?project=math&q=quokka"), f"/runs/{run.uid}/steps/all/?q=quokka"
    links = re.findall(r'<a class="muted" href="([^"]*)">(train \d|eval \d)</a>', page)
    assert "3 matches" in page and links == [(link, "train 2"), (f"{link}&split=eval", "eval 1")]
    for sample in Sample.objects.select_related("step"):
        split = "" if sample.step.split == "train" else "&split=eval"
        assert f'href="{link}&sel={sample.pk}{split}"' in page


def test_a_typo_in_a_key_is_explained(
    runs: list[Run], client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.run(runs[0].project, "empty")
    client.force_login(mate)
    message = "Of 3 runs: No sample here has the key scor. Did you mean score?"
    assert message in read_text(get_page(client, "/search/?project=math&q=scor<0.5"))
    assert "Of 3 runs" not in get_page(client, "/search/?project=math&q=score<0.5")
    monkeypatch.setattr(views, "PART_SECONDS", 0)
    link, page = "/search/?project=math&q=scor<0.5", ""
    for _part in runs:
        page = get_page(client, link)
        link = next(iter(re.findall(r'id="search-more"[^>]*hx-get="([^"]+)"', page)), "")
    assert not link and message in read_text(page)


def read_text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", page).split())


def test_rows_show_the_text_around_the_hit_and_are_one_list(project: Project, client: Client, mate: User) -> None:
    text = "first a quokka sleeps " + "and then much more text follows " * 30
    create_run_with_texts(project, "long", text, "no hit")
    client.force_login(mate)
    page = get_page(client, "/search/?project=math&q=quokka")
    (row,) = re.findall(r'<span class="tail">(.*?)</span>\s*</a>', page, re.DOTALL)
    assert 'first a <mark class="hit">quokka</mark> sleeps' in row and re.search(r'<span class="score \w+ ">', page)
    assert re.search(r'<div id="found" data-roving="y"', page) and 'data-key="j"' in page
    row = get_page(client, "/search/?project=math&q=score=0").partition('<span class="tail">')[2]
    assert "much more text follows" in row.partition("</a>")[0] and "<mark" not in row  # no text was asked for


def test_completions_come_from_the_newest_runs_of_the_project(
    project: Project, client: Client, mate: User, stranger: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_completion, "MAX_SECONDS", 60)
    for n, source in enumerate(("gsm8k", "gsm8k", "aime")):
        rows = [{"prompt": "p", "response": "r", "score": n, "data_source": source}]
        index_file(builders.run(project, f"run-{n}"), lines(*rows), 1)
    client.force_login(mate)
    page = get_page(client, "/search/?project=math")
    (url,) = re.findall(r'data-choices="([^"]*)"', page)

    def complete(q: str) -> dict[str, Any]:
        return {choice["text"]: choice for choice in client.get(f"{url}&q={q}").json()["choices"]}

    counts = {text: choice["count"] for text, choice in complete("source:").items()}
    assert counts == {"source:aime": 1, "source:gsm8k": 2}
    assert complete("sco")["score"]["detail"] == "reward of the response"  # each run has another range
    client.force_login(stranger)
    assert client.get(url).status_code == 404


def test_a_search_is_saved_as_a_view(runs: list[Run], client: Client, mate: User) -> None:
    client.force_login(mate)
    assert "?page=search" in get_page(client, "/search/?project=math")
    fields = {"name": "quokkas", "page": "search", "params": "?project=math&q=quokka", "project": "math"}
    client.post("/views/save/", fields)
    view = SavedView.objects.get()
    assert client.get(f"/views/{view.pk}/").headers["Location"] == "/search/?project=math&q=quokka"
    assert 'href="/search/?project=math&q=quokka"' in get_page(client, "/views/?page=search")


def test_a_long_search_continues_in_parts(
    runs: list[Run], client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PART_SECONDS", 0)
    client.force_login(mate)
    page, seen = get_page(client, "/search/?project=math&q=quokka"), []
    for done in (1, 2, 3):
        seen += re.findall(r">(run-\d)</a>", page)
        if done < 3:
            assert f"searched {done} of 3 runs" in page
            more = re.search(r'hx-get="([^"]*)"', page.partition('id="search-more"')[2])
            assert more
            page = get_page(client, more[1], **{"HX-Request": "true", "HX-Target": "search-more"})
            assert "<html" not in page
    assert seen == ["run-2", "run-0"] and "Runs searched: 3. Matches: 3." in page


def test_a_stranger_finds_no_samples_of_other_projects(runs: list[Run], client: Client, stranger: User) -> None:
    client.force_login(stranger)
    get_page(client, "/search/?project=math&q=quokka", 404)
    assert "run-2" not in get_page(client, "/search/?q=quokka")
    assert ApiClient.with_token(stranger, "read")("GET", "search/?project=math&q=quokka").status_code == 404


def test_a_mistake_is_explained_and_an_unused_key_matches_nothing(runs: list[Run], client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, "/search/?project=math&q=is:trncated")
    assert "Did you mean <code>truncated</code>" in page and "run-0" not in page
    assert "Enter a query about samples" in get_page(client, "/search/?project=math")
    assert "Runs searched: 3. No sample matches" in get_page(client, "/search/?project=math&q=lang=zh")


def test_the_api_streams_a_line_for_each_run(runs: list[Run], mate: User) -> None:
    found = list(api_search.iter_lines(Run.objects.all(), "quokka", mate.pk, 1))
    assert len(found) == 3 and b'"count":2' in found[0] and found[0].count(b'"tail"') == 1
    api = ApiClient.with_token(mate, "read")
    answer = api("GET", "search/?project=math&q=quokka")
    assert isinstance(answer, StreamingHttpResponse)
    assert api("GET", "search/?project=math").status_code == 400
    assert api("GET", "search/?project=math&q=score>").status_code == 400


def test_a_closed_search_does_not_search_further_runs(runs: list[Run], mate: User) -> None:
    parts = search_runs(Run.objects.all(), "quokka", reader=mate.pk)
    assert next(parts).run == runs[2]
    parts.close()  # type: ignore[attr-defined]


def test_the_palette_leads_to_the_search(runs: list[Run], client: Client, mate: User) -> None:
    client.force_login(mate)
    entries = client.get("/go/?q=search").json()["results"]
    assert "/search/?project=math" in [entry["url"] for entry in entries]
    entries = client.get(f"/go/?q=search quokka&run={runs[0].uid}").json()["results"]
    assert "/search/?project=math&q=quokka" in [entry["url"] for entry in entries]
