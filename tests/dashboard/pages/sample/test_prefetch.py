"""Panes of the next samples are prefetched several at a time, and each equals the pane at its own URL."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.pages.sample import prefetch, prompt_history
from rollouts.models import Project, Run, Sample
from tests.dashboard.support.api_client import create_filled_run, get_first_sample
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.stored import body_path


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project)


def list_sample_ids(run: Run) -> list[str]:
    return list(Sample.objects.filter(step__run=run).order_by("pk").values_list("pk", flat=True))


def get_panes(client: Client, *wanted: str, **options: str) -> Any:
    response = client.get("/samples/", {"of": ",".join(wanted), **options})
    assert response.status_code == 200
    return response.json()


def remove_form_values(page: str) -> str:
    """The page without form values that differ in each response: the CSRF token, and the URL to return to."""
    return re.sub(r'name="(csrfmiddlewaretoken|next)" value="[^"]*"', r'name="\1"', page)


@pytest.mark.parametrize("view", ["raw", "math", "diff", "json"])
def test_a_prefetched_pane_equals_the_pane_at_its_own_url(run: Run, client: Client, mate: User, view: str) -> None:
    client.force_login(mate)
    result = get_panes(client, *list_sample_ids(run), q="step", view=view)
    assert list(result) == list_sample_ids(run)
    for pk, pane in result.items():
        headers = {"HX-Request": "true", "HX-Target": "sample"}
        single = client.get(f"/samples/{pk}/", {"q": "step", "view": view}, headers=headers)
        assert remove_form_values(pane) == remove_form_values(single.content.decode())


def test_more_panes_take_no_more_queries(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: Any
) -> None:
    client.force_login(mate)
    first, *more = Sample.objects.filter(step__run=run, step__step=1).values_list("pk", flat=True)
    with django_assert_max_num_queries(15) as single:
        get_panes(client, first)
    with django_assert_max_num_queries(len(single.captured_queries)):
        assert len(get_panes(client, first, *more)) == 4


def test_samples_without_access_are_left_out(run: Run, client: Client, mate: User, db: None) -> None:
    hidden = get_first_sample(create_filled_run(builders.project("secret"), "other")).pk
    client.force_login(mate)
    seen = list_sample_ids(run)[0]
    assert list(get_panes(client, hidden, seen, "nothing", "\x00", "")) == [seen]
    client.logout()
    assert client.get(f"/samples/?of={seen}").status_code == 302


def test_a_pane_with_a_very_long_text_is_left_out(
    project: Project, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = builders.run(project, "long")
    index_file(run, lines(generation("1+1?", "2" * 5_000, 0.0), generation("1+2?", "3", 1.0)), 1)
    monkeypatch.setattr(prefetch, "MAX_PREFETCHED_CHARS", 4_000)
    client.force_login(mate)
    assert len(get_panes(client, *list_sample_ids(run))) == 1


@pytest.mark.parametrize(
    ("every", "step", "shown"),
    [
        (1, 15, (12, 13, 14, 15)),
        (3, 15, (6, 9, 12, 15)),
        (1, 7, (5, 6, 7, 8)),
        (1, 1, (1, 2, 3, 4)),
        (3, 3, (3, 6, 9, 12)),
    ],
)
def test_the_nearest_steps_with_the_prompt_are_shown(
    project: Project, reader: Client, monkeypatch: pytest.MonkeyPatch, every: int, step: int, shown: tuple[int, ...]
) -> None:
    monkeypatch.setattr(prompt_history, "MAX_PROMPT_STEPS", 4)
    monkeypatch.setattr(prompt_history, "SEARCH_DISTANCES", (2, 6))
    run = builders.run(project, "many")
    for number in range(1, 16):
        index_file(run, lines(generation("1+1?" if number % every == 0 else f"{number}?", f"{number}", 1.0)), number)
    open_sample = Sample.objects.get(step__run=run, step__step=step)
    (pane,) = get_panes(reader, open_sample.pk).values()
    bars = re.findall(r'data-step="/runs/[^/]+/steps/(\d+)/" href="/samples/', pane)[-len(shown) :]
    assert bars == [str(item) for item in shown]
    assert f'aria-current="true"><title>step {step}: mean 1.00, responses: 1</title>' in pane


def test_the_steps_of_an_evaluated_prompt_lead_to_its_split(project: Project, reader: Client) -> None:
    run = builders.run(project, "evaluated")
    for step in (1, 2):
        index_file(run, lines(generation("1+1?", f"{step}", 1.0)), step, split="eval")
    (pane,) = get_panes(reader, Sample.objects.get(step__run=run, step__step=2).pk).values()
    urls = [f"/runs/{run.uid}/steps/{step}/?split=eval" for step in (1, 1, 2)]  # of the key [ and of two bars
    assert re.findall(r'data-step="([^"]*)"', pane) == urls


def test_steps_of_another_kind_are_not_in_the_history_of_a_prompt(project: Project, reader: Client) -> None:
    """An asynchronous run counts two kinds of steps: updates, and batches of prompts that it feeds."""
    run = builders.run(project, "async")
    for kind, step in (("global_step", 1), ("global_step", 2), ("feed_index", 1), ("feed_index", 3)):
        response = generation("1+1?", f"{kind} {step}", 1.0)
        index_file(run, lines(response), step, step_kind=kind, source=f"{kind}/{step}")
    (pane,) = get_panes(reader, Sample.objects.get(step__run=run, step__step=2).pk).values()
    assert re.findall(r"<title>step (\d): mean 1.00, responses: (\d)</title>", pane) == [("1", "1"), ("2", "1")]


def test_a_missing_body_leaves_out_only_its_own_pane(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(generation("late", "late")), 9)
    client.force_login(mate)
    segment = run.dumps.select_related("segment").get(step=9).segment
    assert segment
    body_path(segment.path).unlink()
    others = [pk for pk in list_sample_ids(run) if pk not in set(list_step_samples(run, 9))]
    assert list(get_panes(client, *list_sample_ids(run))) == others
    Sample.objects.filter(pk=others[0]).update(ordinal=10**6)
    assert list(get_panes(client, *others)) == others[1:]


def list_step_samples(run: Run, step: int) -> list[str]:
    return list(Sample.objects.filter(step__run=run, step__step=step).values_list("pk", flat=True))


@pytest.mark.parametrize(("shown", "numbers"), [(0, "0 59"), (2, "2 59"), (30, "0 30 59"), (58, "0 58"), (59, "0 59")])
def test_the_label_of_the_shown_step_is_not_covered_by_the_last_label(shown: int, numbers: str) -> None:
    steps = [prompt_history.PromptStep(step, None, 1, "", 1.0, step == shown) for step in range(60)]
    assert " ".join(re.findall(r">(\d+)<", prompt_history.render_step_labels(steps, 100 / 60))) == numbers
