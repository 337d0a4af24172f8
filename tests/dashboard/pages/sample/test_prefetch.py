"""The panes that a reader's next keys show come several at a time, and each is what its own address shows."""

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


def ids(run: Run) -> list[str]:
    return list(Sample.objects.filter(step__run=run).order_by("pk").values_list("pk", flat=True))


def panes(client: Client, *wanted: str, **options: str) -> Any:
    response = client.get("/samples/", {"of": ",".join(wanted), **options})
    assert response.status_code == 200
    return response.json()


def bare(page: str) -> str:
    """Without what differs in each answer: the form's token, and the address that a form comes back to."""
    return re.sub(r'name="(csrfmiddlewaretoken|next)" value="[^"]*"', r'name="\1"', page)


@pytest.mark.parametrize("view", ["raw", "math", "diff", "json"])
def test_a_pane_fetched_ahead_is_what_its_own_address_shows(run: Run, client: Client, mate: User, view: str) -> None:
    client.force_login(mate)
    result = panes(client, *ids(run), q="step", view=view)
    assert list(result) == ids(run)
    for pk, pane in result.items():
        requested = {"HX-Request": "true", "HX-Target": "sample"}
        alone = client.get(f"/samples/{pk}/", {"q": "step", "view": view}, headers=requested)
        assert bare(pane) == bare(alone.content.decode())


def test_more_panes_cost_no_more_queries(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: Any
) -> None:
    client.force_login(mate)
    first, *more = Sample.objects.filter(step__run=run, step__step=1).values_list("pk", flat=True)
    with django_assert_max_num_queries(15) as alone:
        panes(client, first)
    with django_assert_max_num_queries(len(alone.captured_queries)):
        assert len(panes(client, first, *more)) == 4


def test_what_a_person_may_not_see_is_left_out(run: Run, client: Client, mate: User, db: None) -> None:
    hidden = get_first_sample(create_filled_run(builders.project("secret"), "other")).pk
    client.force_login(mate)
    seen = ids(run)[0]
    assert list(panes(client, hidden, seen, "nothing", "\x00", "")) == [seen]
    client.logout()
    assert client.get(f"/samples/?of={seen}").status_code == 302


def test_a_text_that_the_others_would_wait_for_is_left_out(
    project: Project, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = builders.run(project, "long")
    index_file(run, lines(generation("1+1?", "2" * 5_000, 0.0), generation("1+2?", "3", 1.0)), 1)
    monkeypatch.setattr(prefetch, "MAX_PREFETCHED_CHARS", 4_000)
    client.force_login(mate)
    assert len(panes(client, *ids(run))) == 1


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
def test_the_steps_around_that_have_the_prompt_are_shown_however_many_have_it(
    project: Project, reader: Client, monkeypatch: pytest.MonkeyPatch, every: int, step: int, shown: tuple[int, ...]
) -> None:
    monkeypatch.setattr(prompt_history, "MAX_PROMPT_STEPS", 4)
    monkeypatch.setattr(prompt_history, "SEARCH_DISTANCES", (2, 6))
    run = builders.run(project, "many")
    for number in range(1, 16):
        index_file(run, lines(generation("1+1?" if number % every == 0 else f"{number}?", f"{number}", 1.0)), number)
    read = Sample.objects.get(step__run=run, step__step=step)
    (pane,) = panes(reader, read.pk).values()
    bars = re.findall(r'data-step="/runs/[^/]+/steps/(\d+)/" href="/samples/', pane)[-len(shown) :]
    assert bars == [str(item) for item in shown]
    assert f'aria-current="true"><title>step {step}: mean 1.00, responses: 1</title>' in pane


def test_the_steps_of_an_evaluated_prompt_lead_to_its_split(project: Project, reader: Client) -> None:
    run = builders.run(project, "evaluated")
    for step in (1, 2):
        index_file(run, lines(generation("1+1?", f"{step}", 1.0)), step, split="eval")
    (pane,) = panes(reader, Sample.objects.get(step__run=run, step__step=2).pk).values()
    urls = [f"/runs/{run.uid}/steps/{step}/?split=eval" for step in (1, 1, 2)]  # of the key [ and of two bars
    assert re.findall(r'data-step="([^"]*)"', pane) == urls


def test_steps_of_another_kind_are_not_in_the_history_of_a_prompt(project: Project, reader: Client) -> None:
    """An asynchronous run counts updates, and the batches of prompts that it feeds."""
    run = builders.run(project, "async")
    for kind, step in (("global_step", 1), ("global_step", 2), ("feed_index", 1), ("feed_index", 3)):
        response = generation("1+1?", f"{kind} {step}", 1.0)
        index_file(run, lines(response), step, step_kind=kind, source=f"{kind}/{step}")
    (pane,) = panes(reader, Sample.objects.get(step__run=run, step__step=2).pk).values()
    assert re.findall(r"<title>step (\d): mean 1.00, responses: (\d)</title>", pane) == [("1", "1"), ("2", "1")]


def test_a_body_that_is_gone_takes_no_other_pane_with_it(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(generation("late", "late")), 9)
    client.force_login(mate)
    gone = run.dumps.select_related("segment").get(step=9).segment
    assert gone
    body_path(gone.path).unlink()
    others = [pk for pk in ids(run) if pk not in set(run_step(run, 9))]
    assert list(panes(client, *ids(run))) == others
    Sample.objects.filter(pk=others[0]).update(ordinal=10**6)
    assert list(panes(client, *others)) == others[1:]


def run_step(run: Run, step: int) -> list[str]:
    return list(Sample.objects.filter(step__run=run, step__step=step).values_list("pk", flat=True))


@pytest.mark.parametrize(("shown", "numbers"), [(0, "0 59"), (2, "2 59"), (30, "0 30 59"), (58, "0 58"), (59, "0 59")])
def test_the_step_that_is_shown_is_not_written_over_by_one_at_the_end(shown: int, numbers: str) -> None:
    steps = [prompt_history.PromptStep(at, None, 1, "", 1.0, at == shown) for at in range(60)]
    assert " ".join(re.findall(r">(\d+)<", prompt_history.render_step_labels(steps, 100 / 60))) == numbers
