"""The live feed."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.pages.live.views import MAX_CARDS
from rollouts import queues
from rollouts.models import Membership, Project, Run
from tests.rollouts.live.test_feed import index_step
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


def get_feed(reader: Client, query: str = "", **headers: str) -> str:
    response = reader.get(f"/live/{query}", headers=headers)
    assert response.status_code == 200
    return response.content.decode()


def list_cards(page: str) -> list[str]:
    return re.findall(r'aria-label="([^"]*? step -?\d+)"', page)


def read_text(page: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", page).split())


def test_a_card_says_score_change_truncation_and_the_worst_answers(reader: Client, run: Run) -> None:
    index_step(run, 1, 0.0, 1.0, truncated=False)
    index_step(run, 2, 0.25, 1.0, truncated=True)
    page = get_feed(reader)
    assert list_cards(page) == ["grpo, train step 2", "grpo, train step 1"]
    card = read_text(page[page.index("<article") : page.index("</article>")])
    assert "0.62 ▲ 0.125" in card and "trunc 100.0 % ▲ 100.0 pt" in card
    assert card.index("0.25 says 0") < card.index("1.00 says 1")
    assert "(0, 0.5): 1; [0.5, 1): 0; 1: 1" in page


def test_inferred_truncation_is_marked_as_inferred(reader: Client, run: Run) -> None:
    rows = [
        generation(response=f"r {n}", score=n / 6, response_length=size)
        for n, size in enumerate([40, 60, 512, 512, 30, 20])
    ]
    index_file(run, lines(*rows))
    assert "trunc?" in read_text(get_feed(reader))


def test_the_feed_is_filtered_by_split_project_and_name(reader: Client, run: Run, mate: User) -> None:
    index_step(run, 1, 1.0)
    index_step(run, 1, 1.0, split="eval")
    index_step(builders.run(run.project, "gspo"), 4, 1.0)
    assert len(list_cards(get_feed(reader))) == 3
    assert list_cards(get_feed(reader, "?split=eval")) == ["grpo, eval step 1"]
    assert list_cards(get_feed(reader, "?name=gsp")) == ["gspo, train step 4"]
    assert list_cards(get_feed(reader, "?project=math&split=train&name=grpo")) == ["grpo, train step 1"]
    assert "No recent step matches this filter." in get_feed(reader, "?name=nobody")


def test_a_link_opens_older_cards(reader: Client, run: Run) -> None:
    for number in range(MAX_CARDS + 3):
        index_step(run, number, 1.0)
    first = get_feed(reader, "?split=train")
    older = re.search(r'href="(\?split=train&amp;before=\d+)"', first)
    assert older
    rest = get_feed(reader, older[1].replace("&amp;", "&"))
    assert len(list_cards(first)) == MAX_CARDS and list_cards(rest) == [
        f"grpo, train step {number}" for number in (2, 1, 0)
    ]
    assert "Go to newest" in rest and "data-feed-pause" not in rest


def test_an_empty_feed_says_what_will_come(reader: Client, run: Run) -> None:
    assert "No steps received yet." in get_feed(reader)


@pytest.mark.parametrize("query", ["?before=x", "?before=²", "?before=99999999999999999999", "?name=%00", "?split=a"])
def test_invalid_parameters_are_ignored(reader: Client, run: Run, query: str) -> None:
    index_step(run, 1, 1.0)
    assert list_cards(get_feed(reader, query)) == ["grpo, train step 1"]


def test_the_panel_is_sent_again_only_when_something_changed(reader: Client, run: Run, project: Project) -> None:
    index_step(run, 1, 1.0)
    headers = {"HX-Request": "true", "HX-Target": "arrivals"}
    response = reader.get("/live/", headers=headers)
    assert b"<html" not in response.content
    again = {**headers, "If-None-Match": response.headers["ETag"]}
    assert reader.get("/live/", headers=again).status_code == 304
    index_step(builders.run(project, "other"), 1, 1.0)
    assert reader.get("/live/", headers=again).status_code == 200


def test_a_change_of_access_is_shown_although_no_run_has_changed(
    reader: Client, run: Run, owner: User, mate: User
) -> None:
    index_step(run, 1, 1.0)

    def get_etag() -> str:
        return str(reader.get("/live/").headers["ETag"])

    etags = [get_etag()]
    queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "is_blind": True})
    etags.append(get_etag())
    Membership.objects.create(project=builders.project("physics"), user=mate, role="annotator")
    etags.append(get_etag())
    assert get_etag() == etags[2]
    assert len(set(etags)) == 3


def test_hostile_text_is_escaped_and_other_projects_are_hidden(reader: Client, run: Run) -> None:
    index_file(run, lines(generation(response="<img src=x onerror=alert(1)>\u202e")))
    index_step(builders.run(builders.project("hidden"), "theirs"), 1, 1.0)
    page = get_feed(reader)
    assert "<img" not in page and "&lt;img src=x" in page and 'data-code="U+202E"' in page
    assert "theirs" not in page and "hidden</span>" not in page
