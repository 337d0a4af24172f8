"""The page of one prompt over steps, attempts and runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Run, Sample
from tests.rollouts.prompts.test_history import index_responses
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step, accs in [(1, [0, 0]), (2, [0, 1]), (3, [0, 0])]:
        index_responses(run, step, list(accs))
    return run


def key() -> str:
    return Sample.objects.all()[0].prompt_key


def body(reader: Client, run: Run, query: str = "", **headers: str) -> str:
    response = reader.get(f"/runs/{run.uid}/prompts/{key()}/{query}", headers=headers)
    assert response.status_code == 200, query
    return response.content.decode()


def texts(shown: str) -> list[str]:
    """What stands side by side: the one beside first, the one that is read last."""
    return [re.sub("<[^>]*>", "", item) for item in re.findall(r'data-text="\w+">\n?(.*?)</pre>', shown, re.S)]


def sample(step: int, score: float) -> Sample:
    return Sample.objects.filter(step__step=step, score=score)[0]


def test_it_opens_at_the_last_step_beside_the_last_answer_that_solved_it(reader: Client, run: Run) -> None:
    rendered = body(reader, run)
    assert (
        "REGRESSED" in rendered
        and "last solved at step <b>2</b>" in rendered
        and "first solved at step <b>2</b>" in rendered
    )
    assert "best of the last step that solved it" in rendered
    assert [item[:2] for item in texts(rendered)] == ["2 ", "3 "] and texts(rendered)[0].startswith("2 1")


def test_keys_lead_to_the_steps_that_have_the_prompt(reader: Client, run: Run) -> None:
    rendered = body(reader, run, "?at=2")
    links = dict(re.findall(r'data-key="([\[\]])" href="([^"]*)"', rendered))
    assert links == {"[": "?at=1", "]": "?at=3"}
    assert [item[:2] for item in texts(body(reader, run, links["["]))] == ["1 ", "1 "]


def test_two_answers_that_a_person_chose_stay_in_the_address(reader: Client, run: Run) -> None:
    query = f"?at=3&sel={sample(3, 0).pk}&vs={sample(1, 0).pk}"
    rendered = body(reader, run, query)
    assert [item[:2] for item in texts(rendered)] == ["1 ", "3 "]
    assert "close second response" in rendered
    assert f'href="?at=2&amp;vs={sample(1, 0).pk}"' in rendered


def test_the_answer_that_is_read_is_flagged_where_it_stands_by_who_may(
    reader: Client, run: Run, project: Project
) -> None:
    read = sample(3, 0)
    reader.post(f"/runs/{run.uid}/flags/", {"samples": read.pk, "text": "a guess"})
    rendered = body(reader, run, f"?sel={read.pk}")
    marked = r'data-id="%s".*?tag flag.*?</header>.*?data-key="f" data-flag-here="/runs/%s/flags/"'
    assert re.search(marked % (read.pk, run.uid), collapse_spaces(rendered), re.S)
    assert rendered.count('data-key="f"') == rendered.count('data-key="u"') == rendered.count('id="flag-here"') == 1
    project.reasons = [{"key": "odd", "name": "odd one"}]
    project.save()
    assert "odd one" in body(reader, run, f"?sel={read.pk}")
    reader.force_login(builders.member(project, "vera", "viewer"))
    assert "flag-here" not in body(reader, run, f"?sel={read.pk}")


def test_an_answer_alone_opens_its_own_step(reader: Client, run: Run) -> None:
    assert "Responses at step 2" in body(reader, run, f"?sel={sample(2, 1).pk}")


def test_another_runs_bars_open_its_page_with_the_chosen_answer_beside(reader: Client, run: Run) -> None:
    other = builders.run(run.project, "other <b>", uid="other")
    index_responses(other, 5, [1])
    chosen = sample(2, 1).pk
    rendered = body(reader, run, f"?at=2&sel={chosen}")
    link = f"/runs/{other.uid}/prompts/{key()}/?at=5&amp;vs={chosen}"
    assert f'href="{link}"' in rendered and "other &lt;b&gt;" in rendered
    there = reader.get(link.replace("&amp;", "&")).content.decode()
    assert [item[:3] for item in texts(there)] == ["2 1", "5 0"]


def test_links_of_an_evaluated_prompt_stay_in_its_split(reader: Client, run: Run) -> None:
    """Another run has the prompt in both splits, and would show that of the training."""
    other = builders.run(run.project, "other", uid="other")
    evaluated = {"prompt": "evaluated", "response": "x"}
    for owner, split in ((run, "eval"), (other, "eval"), (other, "train")):
        index_file(owner, lines(evaluated), step=7, format="native", split=split, source=f"{split}/7")
    prompt = Sample.objects.filter(step__step=7)[0].prompt_key
    rendered, steps = reader.get(f"/runs/{run.uid}/prompts/{prompt}/").content.decode(), f"/runs/{run.uid}/steps"
    for link in (f"{steps}/7/?split=eval", f"{steps}/all/?split=eval"):
        assert f'href="{link}"' in rendered
    assert f'href="/runs/other/prompts/{prompt}/?split=eval&amp;at=7"' in rendered
    again = lines({"prompt": "another", "response": "x"})
    index_file(run, again, step=7, format="native", split="eval", attempt="again", source="again/7")
    rendered = reader.get(f"/runs/{run.uid}/prompts/{prompt}/").content.decode()
    link = f"{steps}/all/?split=eval&amp;q=prompt:{prompt}&amp;attempt=all"
    assert f'<a href="{link}">all attempts</a>' in rendered


def test_an_earlier_attempt_is_a_line_that_opens(reader: Client, run: Run) -> None:
    index_responses(run, 3, [1], attempt="again")
    rendered = body(reader, run)
    assert "SOLVED" in rendered and "attempt 1" in rendered
    old = body(reader, run, "?attempt=files&at=3")
    assert [item.split()[0] for item in texts(old)][-1] == "3" and "again" not in texts(old)[-1]


def test_the_lines_are_a_panel_that_asks_again(reader: Client, run: Run) -> None:
    panel = body(reader, run, **{"HX-Request": "true", "HX-Target": "lines"})
    assert panel.lstrip().startswith("<section") and "<html" not in panel and "data-text" not in panel
    response = reader.get(f"/runs/{run.uid}/prompts/{key()}/")
    again = {"If-None-Match": response.headers["ETag"]}
    assert reader.get(f"/runs/{run.uid}/prompts/{key()}/", headers=again).status_code == 304
    index_responses(builders.run(run.project, "other"), 5, [1])
    assert reader.get(f"/runs/{run.uid}/prompts/{key()}/", headers=again).status_code == 200


@pytest.mark.parametrize(
    "query", ["?at=x", "?at=²", "?split=nonsense", "?view=%00", "?at=99999999999999999999", "?sel=%00", "?attempt="]
)
def test_odd_words_in_the_address_fall_back(reader: Client, run: Run, query: str) -> None:
    assert "Responses at step 3" in body(reader, run, query)


@pytest.mark.parametrize("query", ["?at=77", "?sel=nobody", "?vs=nobody", "?attempt=nobody"])
def test_what_is_not_there_is_not_found(reader: Client, run: Run, query: str) -> None:
    assert reader.get(f"/runs/{run.uid}/prompts/{key()}/{query}").status_code == 404


def test_an_answer_to_another_prompt_is_not_put_beside(reader: Client, run: Run) -> None:
    index_file(run, lines({"prompt": "another", "response": "x"}), step=9, format="native")
    other = Sample.objects.get(tail="x")
    assert reader.get(f"/runs/{run.uid}/prompts/{key()}/?vs={other.pk}").status_code == 404


def test_strangers_see_neither_the_prompt_nor_an_answer(client: Client, run: Run, stranger: User, mate: User) -> None:
    client.force_login(stranger)
    assert client.get(f"/runs/{run.uid}/prompts/{key()}/").status_code == 404
    hidden = builders.run(builders.project("hidden"), "theirs")
    index_responses(hidden, 1, [1])
    theirs = Sample.objects.get(step__run=hidden)
    client.force_login(mate)
    assert client.get(f"/runs/{run.uid}/prompts/{key()}/?vs={theirs.pk}").status_code == 404
    assert "theirs" not in client.get(f"/runs/{run.uid}/prompts/{key()}/").content.decode()


def test_what_a_model_wrote_is_text(reader: Client, project: Project) -> None:
    run = builders.run(project, "hostile")
    trap: dict[str, Any] = {"prompt": "<script>p</script>", "response": "<img src=x>\u202e", "ground_truth": "<b>"}
    for step in (1, 2):
        index_file(run, lines(trap), step=step, format="native")
    rendered = reader.get(f"/runs/{run.uid}/prompts/{Sample.objects.all()[0].prompt_key}/?view=diff").content.decode()
    assert "<img" not in rendered and "<script>p" not in rendered and 'data-code="U+202E"' in rendered


def test_a_prompt_of_steps_that_were_all_done_again_says_so(reader: Client, run: Run) -> None:
    other = [{"prompt": "another", "response": "x"}]
    for step in (1, 2, 3):
        index_file(run, lines(*other), step=step, attempt="again", format="native")
    old = Sample.objects.filter(tail__contains="{}")[0].prompt_key
    response = reader.get(f"/runs/{run.uid}/prompts/{old}/")
    assert response.status_code == 200 and "contains this prompt any more" in response.content.decode()
    assert reader.get(f"/runs/{run.uid}/prompts/{old}/?attempt=files").status_code == 200
