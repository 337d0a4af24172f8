"""Every page, requested by an owner, an annotator and a stranger: what it shows, and with how many queries."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from rollouts.metrics import series
from rollouts.models import Dump, Project, Run, Sample, Step
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import index_file, line, lines
from tests.support import builders
from tests.support.html import collapse_spaces

FIRST_VISIT, SECOND_VISIT = 37, 26


@pytest.fixture
def run(project: Project) -> Run:
    return build_two_steps(project)


def build_two_steps(project: Project) -> Run:
    run = builders.run(project)
    for step in (1, 2):
        index_file(run, lines(*build_generations(step)), step)
    run.refresh_from_db()
    return run


def build_generations(step: int, count: int = 8) -> list[dict[str, object]]:
    return [
        {
            "prompt": f"What is {n // 2}+1?",
            "response": f"Step {step} says\n#### {n}",
            "score": n / (count - 1),
            "group": str(n // 2),
            "index": n % 2,
            "ground_truth": str(n // 2 + 1),
            "rewards": {"acc": n % 2},
            "seed": 17,
        }
        for n in range(count)
    ]


def get_page(client: Client, url: str, status: int = 200, **headers: str) -> str:
    answer = client.get(url, headers=headers)
    assert answer.status_code == status, (url, answer.status_code)
    return answer.content.decode()


def list_paths(run: Run) -> list[str]:
    sample = Sample.objects.filter(step__run=run).first()
    assert sample
    return [
        f"/runs/{run.uid}/",
        f"/runs/{run.uid}/charts.json",
        f"/runs/{run.uid}/steps/latest/",
        f"/runs/{run.uid}/steps/1/?q=score<0.5",
        f"/runs/{run.uid}/steps/all/",
        f"/runs/{run.uid}/prompts/{sample.prompt_key}/",
        f"/samples/{sample.pk}/",
        *(f"/samples/{sample.pk}/?view={view}" for view in ("math", "turns", "tokens", "json")),
        f"/settings/{run.project.slug}/",
    ]


@pytest.mark.parametrize(("who", "status"), [("owner", 200), ("mate", 200), ("stranger", 404)])
def test_only_members_see_the_pages_of_a_run(
    run: Run, client: Client, who: str, status: int, request: pytest.FixtureRequest
) -> None:
    client.force_login(request.getfixturevalue(who))
    assert {url: client.get(url).status_code for url in list_paths(run)} == dict.fromkeys(list_paths(run), status)


def test_nobody_sees_a_page_without_signing_in(run: Run, client: Client) -> None:
    for url in [*list_paths(run), "/", "/live/", "/settings/"]:
        assert client.get(url).headers["Location"].startswith("/sign-in/"), url


def test_lists_have_no_runs_of_other_projects(run: Run, client: Client, stranger: User) -> None:
    client.force_login(stranger)
    for url in ("/", "/live/", "/settings/"):
        assert run.name not in get_page(client, url)


def test_the_list_of_runs_takes_as_many_queries_for_one_run_as_for_thirty(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client.force_login(mate)
    for number in range(30):
        other_run = builders.run(run.project, f"other-{number}")
        Step.objects.create(run=other_run, attempt=builders.attempt(other_run), split="train", step=1, score_mean=0.5)
    with django_assert_max_num_queries(11):
        assert "other-29" in get_page(client, "/")


def test_the_step_page_takes_few_queries_for_any_number_of_rows(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    index_file(run, lines(*build_generations(3, 60)), 3)
    client.force_login(mate)
    for most, step in ((FIRST_VISIT, 2), (FIRST_VISIT, 3), (SECOND_VISIT, 2), (SECOND_VISIT, 3)):
        with django_assert_max_num_queries(most):
            get_page(client, f"/runs/{run.uid}/steps/{step}/")


def test_an_unchanged_page_is_answered_with_304(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client.force_login(mate)
    first = client.get(f"/runs/{run.uid}/steps/latest/")
    with django_assert_max_num_queries(7):
        again = client.get(f"/runs/{run.uid}/steps/latest/", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    index_file(run, lines(*build_generations(3)), 3)
    fresh = client.get(f"/runs/{run.uid}/steps/latest/", headers={"If-None-Match": first.headers["ETag"]})
    assert fresh.status_code == 200
    assert "step 3" in fresh.content.decode()


def test_a_page_with_the_form_token_of_an_earlier_session_is_not_used_again(
    run: Run, client: Client, mate: User
) -> None:
    client.force_login(mate)
    path = f"/runs/{run.uid}/steps/latest/"
    first = client.get(path)
    again = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    client.cookies[settings.CSRF_COOKIE_NAME] = "b" * 32  # as a new sign-in sets it
    fresh = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, fresh.status_code) == (304, 200)


def test_a_panel_is_a_part_of_the_page_at_the_same_address(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    full = client.get(f"/runs/{run.uid}/steps/latest/")
    part = client.get(f"/runs/{run.uid}/steps/latest/", headers={"HX-Request": "true", "HX-Target": "result"})
    assert "<html" not in part.content.decode()
    assert 'id="rows"' in part.content.decode()
    assert part.headers["ETag"] != full.headers["ETag"]
    assert "HX-Target" in full.headers["Vary"]


def test_the_worst_sample_of_the_latest_step_is_open_by_default(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/steps/latest/")
    assert '<mark class="answer">#### 0</mark>' in page
    assert "8</b>" in page
    assert "of 8 recorded samples" in page


def test_a_selected_sample_is_shown_though_the_query_leaves_it_out(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    best = Sample.objects.filter(step__run=run, step__step=2).order_by("-score")[0]
    page = get_page(client, f"/runs/{run.uid}/steps/2/?q=score<0.5&sel={best.pk}")
    assert f'<article class="sample" data-id="{best.pk}"' in page
    assert f'id="r-{best.pk}"' not in page


def test_rows_are_sorted_as_the_url_says(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    best = Sample.objects.filter(step__run=run, step__step=2).order_by("-score")[0]
    page = get_page(client, f"/runs/{run.uid}/steps/2/?sort=-score")
    assert page.index(f'id="r-{best.pk}"') == page.index('id="r-')
    assert "score ↓" in page


def test_columns_without_data_are_left_out(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/steps/2/")
    assert "c-expected" in page
    assert "c-adv" not in page


def test_an_invalid_query_is_explained_with_the_wrong_part_underlined(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/steps/2/?q=score<0.5 )")
    assert "Missing opening parenthesis." in page
    assert "<u>)</u>" in page
    assert page.count('<tr id="r-') == 8


def test_a_wrong_query_keeps_the_last_good_result(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    response = client.get(f"/runs/{run.uid}/steps/2/?q=)", headers={"HX-Request": "true", "HX-Target": "result"})
    assert response.headers["HX-Retarget"] == "#q-error"
    assert "<tr" not in response.content.decode()


def test_no_match_says_so_and_offers_all_steps(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/steps/2/?q=zzz")
    assert "No samples match this query." in page
    assert f'href="/runs/{run.uid}/steps/all/?q=zzz"' in page


def test_more_rows_have_the_columns_of_the_first_rows(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(*build_generations(3, 60)), 3)
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/steps/3/")
    assert page.count('<tr id="r-') == 50
    url = f"/runs/{run.uid}/steps/3/?start=50&columns=group,n,len"
    more = get_page(client, url, **{"HX-Request": "true", "HX-Target": "more-50"})
    assert more.count('<tr id="r-') == 10
    assert more.count("<td") == 70
    assert "<html" not in more


def test_unknown_urls_are_404_with_an_explanation(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    for url in (
        f"/runs/{run.uid}/steps/seven/",
        f"/runs/{run.uid}/steps/99/",
        f"/runs/{run.uid}/steps/1/?attempt=none",
        f"/runs/{run.uid}/steps/1/?sel=none",
        f"/runs/{run.uid}/prompts/none/",
        "/runs/%00/",
        "/samples/%00/",
        "/settings/%00/",
        "/nowhere/",
    ):
        rendered = get_page(client, url, 404)
        assert "Page not found" in rendered, url
        assert ("Go to run " in rendered) == (f"/runs/{run.uid}/" in url), url
        keys = rendered.partition('class="foot-keys">')[2].partition("</div>")[0]
        assert keys.count("<span>") == 1 and "all shortcuts" in keys, url


def test_parameters_of_any_kind_never_break_a_page(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    odd = (
        "sort=%00",
        "view=x",
        "split=none",
        "start=-1",
        "start=99999999999999",
        "q=%ED%A0%80",
        "q=%00",
        "columns=,",
    )
    for query in odd:
        assert client.get(f"/runs/{run.uid}/steps/latest/?{query}").status_code == 200, query


def test_a_run_without_samples_says_what_to_do(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project)
    client.force_login(mate)
    assert "No samples received yet" in get_page(client, f"/runs/{run.uid}/steps/latest/")


def test_an_empty_server_shows_how_to_start(client: Client, mate: User, stranger: User) -> None:
    client.force_login(mate)
    page = get_page(client, "/")
    assert "rolloutdeck import" in page
    assert "rolloutdeck check --trainer verl   # trl, slime, roll, cure" in page
    assert "rolloutdeck.init(" in page
    assert "/findings/add/" in get_page(client, "/findings/")
    client.force_login(stranger)
    assert "A project is created with its first run" in get_page(client, "/pins/")
    assert "/findings/add/" not in get_page(client, "/findings/")  # a stranger has no project for it


def test_dropped_and_failed_dumps_are_shown_on_the_overview(run: Run, client: Client, mate: User) -> None:
    run.dropped = {"spool-1": {"spool full": 3}, "spool-2": {"spool full": 4}}
    run.save()
    Dump.objects.filter(run=run, step=1).update(state="failed", message="No format recognises it.")
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/")
    assert "<b>Dropped by the client (never uploaded)</b><span>7 spool full</span>" in collapse_spaces(page)
    assert "No format recognises it." in page


def test_a_run_without_heartbeat_is_shown_as_silent(run: Run, client: Client, mate: User) -> None:
    Run.objects.update(seen_at=timezone.now() - timedelta(hours=1))
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/")
    assert "The training may have stopped, or its host cannot reach this server." in page
    assert '<span class="dot silent"></span><span class="word">no heartbeat</span>' in collapse_spaces(page)


def test_charts_have_the_points_and_collapse_constants(run: Run, client: Client, mate: User) -> None:
    points = [MetricPoint(step, {"critic/score/mean": step / 10, "actor/lr": 1e-6}) for step in range(1, 6)]
    series.append_points(run, builders.attempt(run), points)
    client.force_login(mate)
    data = client.get(f"/runs/{run.uid}/charts.json").json()
    assert data["curves"]["critic/score/mean"][0]["steps"] == [1, 2, 3, 4, 5]
    assert data["constant"]["actor/lr"] == 1e-6
    assert data["constant"]["samples/score/mean"] == 0.5
    assert "actor/lr" not in data["curves"]


def test_the_strip_has_few_bars_for_many_steps(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project)
    attempt = builders.attempt(run)
    many = [Step(run=run, attempt=attempt, split="train", step=step, score_mean=0.5) for step in range(5000)]
    many[2500].flags = 3
    Step.objects.bulk_create(many)
    client.force_login(mate)
    page = get_page(client, f"/runs/{run.uid}/", **{"HX-Request": "true", "HX-Target": "strip"})
    assert 100 <= page.count('class="hit"') <= 120
    assert page.count('class="flags"') == 1
    assert "/steps/4999/" in page


def test_a_superseded_attempt_is_read_by_its_key(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(*build_generations(2, 2)), 2, attempt="second")
    client.force_login(mate)
    assert "of 2 recorded samples" in get_page(client, f"/runs/{run.uid}/steps/2/")
    first = run.attempts.get(number=1).key
    assert "of 8 recorded samples" in get_page(client, f"/runs/{run.uid}/steps/2/?attempt={first}")


def test_a_page_works_with_one_empty_response(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project)
    index_file(run, line({"prompt": "", "response": ""}))
    client.force_login(mate)
    assert "The response is empty." in get_page(client, f"/runs/{run.uid}/steps/1/")


@pytest.mark.parametrize("path", ["/search/", "/findings/", "/review/", "/live/", "/compare/", "/pins/", "/"])
def test_an_empty_page_has_one_button_that_fills_it(client: Client, stranger: User, path: str) -> None:
    client.force_login(stranger)
    page = client.get(path).content.decode()
    assert page.count("Load demo data") == 1 and page.count('action="/demo/"') == 1
    assert "Go to runs" not in page


def test_an_empty_heatmap_has_a_button_that_fills_it(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    empty = builders.run(run.project, "empty")
    assert client.get(f"/runs/{empty.uid}/?show=prompts").content.decode().count('action="/demo/"') == 1
