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


def get_prompt_key() -> str:
    return Sample.objects.all()[0].prompt_key


def get_page(reader: Client, run: Run, query: str = "", **headers: str) -> str:
    response = reader.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/{query}", headers=headers)
    assert response.status_code == 200, query
    return response.content.decode()


def read_texts(shown: str) -> list[str]:
    """The two texts side by side: first the one for comparison, then the open one."""
    return [re.sub("<[^>]*>", "", item) for item in re.findall(r'data-text="\w+">\n?(.*?)</pre>', shown, re.S)]


def get_sample(step: int, score: float) -> Sample:
    return Sample.objects.filter(step__step=step, score=score)[0]


def test_the_page_opens_at_the_last_step_next_to_the_last_correct_answer(reader: Client, run: Run) -> None:
    rendered = get_page(reader, run)
    assert (
        "REGRESSED" in rendered
        and "last solved at step <b>2</b>" in rendered
        and "first solved at step <b>2</b>" in rendered
    )
    assert "best of the last step that solved it" in rendered
    assert [item[:2] for item in read_texts(rendered)] == ["2 ", "3 "] and read_texts(rendered)[0].startswith("2 1")


def test_keys_lead_to_the_steps_that_have_the_prompt(reader: Client, run: Run) -> None:
    rendered = get_page(reader, run, "?at=2")
    links = dict(re.findall(r'data-key="([\[\]])" href="([^"]*)"', rendered))
    assert links == {"[": "?at=1", "]": "?at=3"}
    assert [item[:2] for item in read_texts(get_page(reader, run, links["["]))] == ["1 ", "1 "]


def test_two_chosen_answers_are_kept_in_the_url(reader: Client, run: Run) -> None:
    query = f"?at=3&sel={get_sample(3, 0).pk}&vs={get_sample(1, 0).pk}"
    rendered = get_page(reader, run, query)
    assert [item[:2] for item in read_texts(rendered)] == ["1 ", "3 "]
    assert "close second response" in rendered
    assert f'href="?at=2&amp;vs={get_sample(1, 0).pk}"' in rendered


def test_only_annotators_flag_the_open_answer_on_the_page(reader: Client, run: Run, project: Project) -> None:
    open_answer = get_sample(3, 0)
    reader.post(f"/runs/{run.uid}/flags/", {"samples": open_answer.pk, "text": "a guess"})
    rendered = get_page(reader, run, f"?sel={open_answer.pk}")
    marked = r'data-id="%s".*?tag flag.*?</header>.*?data-key="f" data-flag-here="/runs/%s/flags/"'
    assert re.search(marked % (open_answer.pk, run.uid), collapse_spaces(rendered), re.S)
    assert rendered.count('data-key="f"') == rendered.count('data-key="u"') == rendered.count('id="flag-here"') == 1
    project.reasons = [{"key": "odd", "name": "odd one"}]
    project.save()
    assert "odd one" in get_page(reader, run, f"?sel={open_answer.pk}")
    reader.force_login(builders.member(project, "vera", "viewer"))
    assert "flag-here" not in get_page(reader, run, f"?sel={open_answer.pk}")


def test_a_link_to_one_answer_opens_its_step(reader: Client, run: Run) -> None:
    assert "Responses at step 2" in get_page(reader, run, f"?sel={get_sample(2, 1).pk}")


def test_bars_of_another_run_open_its_page_next_to_the_chosen_answer(reader: Client, run: Run) -> None:
    other = builders.run(run.project, "other <b>", uid="other")
    index_responses(other, 5, [1])
    chosen = get_sample(2, 1).pk
    rendered = get_page(reader, run, f"?at=2&sel={chosen}")
    link = f"/runs/{other.uid}/prompts/{get_prompt_key()}/?at=5&amp;vs={chosen}"
    assert f'href="{link}"' in rendered and "other &lt;b&gt;" in rendered
    other_page = reader.get(link.replace("&amp;", "&")).content.decode()
    assert [item[:3] for item in read_texts(other_page)] == ["2 1", "5 0"]


def test_links_of_an_evaluated_prompt_stay_in_its_split(reader: Client, run: Run) -> None:
    """Another run has the prompt in both splits, and its page shows the training split by default."""
    other = builders.run(run.project, "other", uid="other")
    evaluated = {"prompt": "evaluated", "response": "x"}
    for each_run, split in ((run, "eval"), (other, "eval"), (other, "train")):
        index_file(each_run, lines(evaluated), step=7, format="native", split=split, source=f"{split}/7")
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


def test_an_earlier_attempt_has_a_line_that_can_be_opened(reader: Client, run: Run) -> None:
    index_responses(run, 3, [1], attempt="again")
    rendered = get_page(reader, run)
    assert "SOLVED" in rendered and "attempt 1" in rendered
    old = get_page(reader, run, "?attempt=files&at=3")
    assert [item.split()[0] for item in read_texts(old)][-1] == "3" and "again" not in read_texts(old)[-1]


def test_the_lines_are_a_panel_that_is_updated(reader: Client, run: Run) -> None:
    panel = get_page(reader, run, **{"HX-Request": "true", "HX-Target": "lines"})
    assert panel.lstrip().startswith("<section") and "<html" not in panel and "data-text" not in panel
    response = reader.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/")
    again = {"If-None-Match": response.headers["ETag"]}
    assert reader.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/", headers=again).status_code == 304
    index_responses(builders.run(run.project, "other"), 5, [1])
    assert reader.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/", headers=again).status_code == 200


@pytest.mark.parametrize(
    "query", ["?at=x", "?at=²", "?split=nonsense", "?view=%00", "?at=99999999999999999999", "?sel=%00", "?attempt="]
)
def test_invalid_parameters_fall_back_to_the_default(reader: Client, run: Run, query: str) -> None:
    assert "Responses at step 3" in get_page(reader, run, query)


@pytest.mark.parametrize("query", ["?at=77", "?sel=nobody", "?vs=nobody", "?attempt=nobody"])
def test_a_missing_step_answer_or_attempt_is_404(reader: Client, run: Run, query: str) -> None:
    assert reader.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/{query}").status_code == 404


def test_an_answer_to_another_prompt_cannot_be_compared(reader: Client, run: Run) -> None:
    index_file(run, lines({"prompt": "another", "response": "x"}), step=9, format="native")
    other = Sample.objects.get(tail="x")
    assert reader.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/?vs={other.pk}").status_code == 404


def test_strangers_see_neither_the_prompt_nor_an_answer(client: Client, run: Run, stranger: User, mate: User) -> None:
    client.force_login(stranger)
    assert client.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/").status_code == 404
    hidden = builders.run(builders.project("hidden"), "theirs")
    index_responses(hidden, 1, [1])
    hidden_sample = Sample.objects.get(step__run=hidden)
    client.force_login(mate)
    assert client.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/?vs={hidden_sample.pk}").status_code == 404
    assert "theirs" not in client.get(f"/runs/{run.uid}/prompts/{get_prompt_key()}/").content.decode()


def test_hostile_text_of_a_model_is_escaped(reader: Client, project: Project) -> None:
    run = builders.run(project, "hostile")
    trap: dict[str, Any] = {"prompt": "<script>p</script>", "response": "<img src=x>\u202e", "ground_truth": "<b>"}
    for step in (1, 2):
        index_file(run, lines(trap), step=step, format="native")
    rendered = reader.get(f"/runs/{run.uid}/prompts/{Sample.objects.all()[0].prompt_key}/?view=diff").content.decode()
    assert "<img" not in rendered and "<script>p" not in rendered and 'data-code="U+202E"' in rendered


def test_a_prompt_of_only_superseded_steps_says_so(reader: Client, run: Run) -> None:
    other = [{"prompt": "another", "response": "x"}]
    for step in (1, 2, 3):
        index_file(run, lines(*other), step=step, attempt="again", format="native")
    old = Sample.objects.filter(tail__contains="{}")[0].prompt_key
    response = reader.get(f"/runs/{run.uid}/prompts/{old}/")
    assert response.status_code == 200 and "contains this prompt any more" in response.content.decode()
    assert reader.get(f"/runs/{run.uid}/prompts/{old}/?attempt=files").status_code == 200
