"""The page and the API of a comparison, asked by a member and a stranger."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.compare import table
from rollouts.compare.compare import ComparedMean
from rollouts.models import Membership, Project, Run
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

HOSTILE = '<script>alert(1)</script>\u202e"@,&'


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, config={"lr": 1e-6})
    for step in (1, 2):
        index_evaluation(run, step, right=lambda n, step=step: n % (step + 1) == 0)
    return run


def index_evaluation(
    run: Run, step: int, *, right: Any, prompts: int = 12, split: str = "eval", source: str = ""
) -> None:
    rows = [
        {"prompt": f"q{n}", "response": f"so\n#### {n}", "score": float(right(n)), "ground_truth": str(n)}
        | ({"data_source": source or ("odd" if n % 2 else "even")})
        for n in range(prompts)
    ]
    index_file(run, lines(*rows), step, split=split)
    run.refresh_from_db()


def get_page(client: Client, query: str) -> str:
    response = client.get(f"/compare/?{query}")
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def test_the_page_counts_prompts_by_the_side_that_is_correct_and_filters_by_it(
    run: Run, client: Client, mate: User
) -> None:
    client.force_login(mate)
    rendered = get_page(client, f"of={run.uid}@1,{run.uid}@latest")
    assert '<th class="c-right">solved by</th>' in rendered
    for chip in ("All paired<b>12", "Both correct<b>2", "A only<b>4", "B only<b>2", "Both wrong<b>4"):
        assert chip in collapse_spaces(rendered)
    assert "@latest = 2" in rendered and "Same run, no config differences" in rendered
    assert "pass@1" in rendered and "pass@k" not in rendered and "maj@n" not in rendered
    only = get_page(client, f"of={run.uid}@1,{run.uid}@latest&only=B")
    assert "1–2 of 2" in only and only.count("/prompts/") == 2 and only.count('<a class="quiet end" data-swap') == 4
    assert f'href="?of={run.uid}@1,{run.uid}@latest&amp;only=none"' in only


def test_prompts_come_in_pages_in_few_queries(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    index_evaluation(run, 3, right=lambda n: True, prompts=120)
    index_evaluation(run, 4, right=lambda n: False, prompts=120)
    client.force_login(mate)
    with django_assert_max_num_queries(22):
        first = get_page(client, f"of={run.uid}@3,{run.uid}@4")
    with django_assert_max_num_queries(16):
        last = get_page(client, f"of={run.uid}@3,{run.uid}@4&start=100")
    assert "1–50 of 120" in first and "Next" in first and "start=50" in first
    assert "101–120 of 120" in last and ">Next<" not in last
    assert (first.count("/prompts/"), last.count("/prompts/")) == (50, 20)


def test_steps_without_evaluation_are_compared_by_their_training_samples(run: Run, client: Client, mate: User) -> None:
    index_evaluation(run, 3, right=bool, split="train")
    index_evaluation(run, 4, right=bool, split="train")
    client.force_login(mate)
    assert "All paired<b>12" in collapse_spaces(get_page(client, f"of={run.uid}@3,{run.uid}@4"))
    assert "has no eval step 3" in html.unescape(get_page(client, f"of={run.uid}@3,{run.uid}@4&split=eval"))
    assert "has no eval step 3" in html.unescape(get_page(client, f"of={run.uid}@3,{run.uid}@2"))


def test_prompts_without_a_pair_are_counted_and_listed(run: Run, client: Client, mate: User) -> None:
    index_evaluation(run, 3, right=lambda n: True, prompts=15)
    client.force_login(mate)
    rendered = get_page(client, f"of={run.uid}@1,{run.uid}@3&only=unpaired")
    assert "3 prompts of B</a> are not paired" in rendered and rendered.count("not in this step") == 3
    index_evaluation(run, 4, right=lambda n: True, prompts=1, split="train")
    index_file(run, lines({"prompt": "other", "response": "", "score": 1}), 5, split="train")
    assert "These steps have no prompts in common" in get_page(client, f"of={run.uid}@4,{run.uid}@5&split=train")


def test_settings_that_differ_are_shown(run: Run, project: Project, client: Client, mate: User) -> None:
    other = builders.run(project, "other", config={"lr": 3e-6})
    index_evaluation(other, 7, right=lambda n: True)
    client.force_login(mate)
    rendered = get_page(client, "of=grpo@1,other@7")
    assert "1 setting differs" in rendered and "1e-06" in rendered and "3e-06" in rendered


def test_a_page_without_two_steps_has_a_picker_that_leads_to_the_comparison(
    run: Run, client: Client, mate: User
) -> None:
    client.force_login(mate)
    assert f'<option value="{run.uid}" selected>' in get_page(client, "")
    assert get_page(client, f"of={run.uid}@2").count('value="2"') == 1
    response = client.get("/compare/", {"run": [run.uid, run.uid, ""], "step": ["1", "", ""], "split": "eval"})
    assert response.headers["Location"] == f"/compare/?of={run.uid}@1,{run.uid}@latest&split=eval"


def test_the_picker_offers_a_second_run_of_the_same_project(run: Run, client: Client, mate: User) -> None:
    builders.run(run.project, "sister", seen_at=timezone.now() - timedelta(days=1))
    Membership.objects.create(project=builders.project("other"), user=mate, role="viewer")
    builders.run(builders.project("other"), "stranger", seen_at=timezone.now() - timedelta(hours=1))
    client.force_login(mate)
    for query in ("", f"of={run.uid}@2"):
        chosen = re.findall(r'<option value="([^"]*)" selected', get_page(client, query))
        assert chosen[:2] == [run.uid, "uid-math-sister"], query


def test_the_picker_begins_with_the_newest_runs_that_have_samples(run: Run, client: Client, mate: User) -> None:
    builders.run(run.project, "configured", seen_at=timezone.now() + timedelta(hours=1))
    client.force_login(mate)
    assert re.findall(r'<option value="([^"]*)" selected', get_page(client, ""))[:2] == [run.uid, "uid-math-configured"]


def test_a_server_without_runs_has_a_picker_too(client: Client, mate: User) -> None:
    client.force_login(mate)
    assert "No runs yet" in get_page(client, "")


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("nobody@1,{uid}@1", "Run 'nobody' not found, or you have no access to it."),
        ("{uid}@1,{uid}@99", "grpo has no eval step 99."),
        ("{uid}@lastest,{uid}@1", "'lastest' is not a valid step. Use a step number or latest."),
        (",".join(["{uid}"] * 7), "You can compare at most 6 steps at once, not 7."),
        ("{uid}@99999999999999999999,{uid}@1", "is not a valid step"),
        ("%00@1,{uid}@1", "Run '@1' not found"),
    ],
)
def test_a_mistake_is_explained_next_to_the_picker(run: Run, client: Client, mate: User, of: str, message: str) -> None:
    client.force_login(mate)
    rendered = html.unescape(get_page(client, f"of={of.format(uid=run.uid)}"))
    assert message in rendered and 'class="picker' in rendered


def test_nobody_compares_with_a_run_that_they_may_not_see(run: Run, client: Client, stranger: User) -> None:
    own_project = builders.project("mine")
    builders.member(own_project, "otto", "owner")
    client.force_login(stranger)
    assert f"Run '{run.uid}' not found" in html.unescape(get_page(client, f"of={run.uid}@1,{run.uid}@2"))
    assert run.name not in get_page(client, "")
    answer = ApiClient.with_token(stranger, "read")("GET", f"compare/?of={run.uid}@1,{run.uid}@2")
    assert answer.status_code == 404 and f"Run '{run.uid}' not found" in answer.json()["error"]["message"]
    assert Client().get("/compare/").headers["Location"].startswith("/sign-in/")


def test_hostile_names_and_texts_are_escaped(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project, HOSTILE, uid="evil", config={HOSTILE: HOSTILE})
    second_run = builders.run(project, "tame", uid="tame")
    for each_run in (run, second_run):
        row = {"prompt": HOSTILE, "response": HOSTILE, "score": 1, "ground_truth": HOSTILE, "data_source": HOSTILE}
        index_file(each_run, lines(row, {**row, "prompt": "b", "data_source": "b"}), 1, split="eval")
    client.force_login(mate)
    rendered = get_page(client, "of=evil@1,tame@1") + get_page(client, "")
    assert "<script>alert" not in rendered and "&lt;script&gt;" in rendered
    assert 'data-code="U+202E"' in rendered


def test_an_unchanged_page_is_answered_with_304(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    url = f"/compare/?of={run.uid}@1,{run.uid}@latest"
    first = client.get(url)
    assert client.get(url, headers={"If-None-Match": first.headers["ETag"]}).status_code == 304
    index_evaluation(run, 3, right=lambda n: True)
    assert client.get(url, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


def test_the_api_gives_the_figures_and_the_prompts(run: Run, mate: User) -> None:
    api = ApiClient.with_token(mate, "read")
    data = api("GET", f"compare/?of={run.uid}@1,{run.uid}@latest&page_size=3").json()
    assert [cell["step"] for cell in data["cells"]] == [1, 2] and data["cells"][1]["letter"] == "B"
    assert data["outcomes"] == {"AB": 2, "A": 4, "B": 2, "none": 4} and data["unpaired"] == [0, 0]
    full, even, odd = data["sources"]
    assert (full["data_source"], even["data_source"], odd["prompts"]) == (None, "even", 6)
    first, second = full["figures"]["pass@1"]
    assert first == {"value": 0.5, "change": None, "interval": None}
    assert second["change"] == pytest.approx(-1 / 6)
    assert second["interval"][0] < second["change"] < second["interval"][1]
    assert data["count"] == 12 and len(data["results"]) == 3 and "page=2" in data["next"]
    row = data["results"][0]
    assert row["right"] in ("A", "B") and len(row["cells"][0]["samples"]) == 1
    only = api("GET", f"compare/?of={run.uid}@1,{run.uid}@latest&only=none").json()
    assert only["count"] == 4 and {item["right"] for item in only["results"]} == {"none"}


def test_the_api_says_what_it_cannot_compare(run: Run, mate: User) -> None:
    api = ApiClient.with_token(mate, "read")
    for query, field in (("", "of"), (f"of={run.uid}@1", "of"), (f"of={run.uid},{run.uid}&only=Z", "only")):
        response = api("GET", f"compare/?{query}")
        assert response.status_code == 400 and response.json()["error"]["field"] == field


@pytest.mark.parametrize("step", [0, 2])
def test_the_pages_of_a_run_lead_to_the_comparison_of_what_they_show(
    run: Run, client: Client, mate: User, step: int
) -> None:
    index_evaluation(run, 0, right=lambda n: True)
    client.force_login(mate)
    rendered = client.get(f"/runs/{run.uid}/steps/{step}/?split=eval").content.decode()
    assert f'href="/compare/?of={run.uid}@{step}&amp;split=eval"' in rendered
    assert f'href="/compare/?of={run.uid}@latest&amp;split=eval"' in client.get(f"/runs/{run.uid}/").content.decode()


def test_a_mistake_keeps_the_chosen_runs_and_steps(run: Run, client: Client, mate: User) -> None:
    builders.run(run.project, "newer")
    client.force_login(mate)
    rendered = get_page(client, f"of={run.uid}@99,newer@latest,nobody@3")
    assert f'<option value="{run.uid}" selected>' in rendered and 'value="99"' in rendered
    assert '<option value="uid-math-newer" selected>' in rendered and 'value="3"' in rendered


def test_the_open_page_has_a_panel_that_is_updated_live(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    url = f"/compare/?of={run.uid}@1,{run.uid}@latest"
    assert f'data-topics="run:{run.uid}"' in client.get(url).content.decode()
    panel = client.get(url, headers={"HX-Request": "true", "HX-Target": "compare"}).content.decode()
    assert panel.startswith('<div class="compare-page ')


def test_the_score_has_a_column_if_it_says_more_than_right_or_wrong(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    assert "<th>score</th>" not in get_page(client, f"of={run.uid}@1,{run.uid}@2")
    index_file(run, lines(*({"prompt": f"q{n}", "response": "", "score": 0.25 * n} for n in range(4))), 3, split="eval")
    assert "<th>score</th>" in get_page(client, f"of={run.uid}@1,{run.uid}@3&as=paired")


def open_first_prompt(client: Client, run: Run, of: str, **more: Any) -> str:
    """The page with the first prompt of its list open."""
    rendered = get_page(client, of + "".join(f"&{name}={value}" for name, value in more.items()))
    key = re.findall(r'<tr id="p-([^"]+)"', rendered)[0]
    return get_page(client, f"{of}&sel={key}" + "".join(f"&{name}={value}" for name, value in more.items()))


def test_a_prompt_opens_with_all_its_answers_side_by_side(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    of = f"of={run.uid}@1,{run.uid}@2,{run.uid}@latest"
    rendered = open_first_prompt(client, run, of)
    assert rendered.count('class="board-column"') == 3 and re.search('<tr id="p-[^>]+ aria-current="true"', rendered)
    assert "prompt 1 of 12" in rendered and 'data-key="j"' in rendered and 'data-key="k"' not in rendered
    assert {"CORRECT", "WRONG"} & set(re.findall(r"CORRECT|WRONG", rendered)) and "data-diff" not in rendered
    assert "data-diff" in open_first_prompt(client, run, of, diff=1)


@pytest.mark.one_database
def test_next_and_previous_go_through_the_whole_list_page_by_page(run: Run, client: Client, mate: User) -> None:
    index_evaluation(run, 3, right=lambda n: True, prompts=60)
    index_evaluation(run, 4, right=lambda n: False, prompts=60)
    client.force_login(mate)
    address, seen = f"?of={run.uid}@3,{run.uid}@4", []
    key = re.findall(r'<tr id="p-([^"]+)"', get_page(client, address[1:]))[0]
    rendered = get_page(client, f"{address[1:]}&sel={key}")
    while True:
        seen.append(re.findall(r'data-pair="([^"]+)"', rendered)[0])
        following = re.search(r'href="([^"]+)" data-swap data-key="j"', rendered)
        if following is None:
            break
        rendered = get_page(client, html.unescape(following[1])[1:])
    assert len(seen) == len(set(seen)) == 60 and "51–60 of 60" in rendered
    closed = re.search(r'href="([^"]+)" data-swap data-key="Esc"', rendered)
    assert closed and "start=50" in closed[1] and "sel=" not in closed[1]


def test_each_response_of_a_prompt_can_be_read(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project, "many")
    for step in (1, 2):
        rows = [
            {"prompt": "q", "response": f"step {step} says {n}", "score": n, "index": n} for n in range(3 - step % 2)
        ]
        index_file(run, lines(*rows), step, split="eval")
    client.force_login(mate)
    second = open_first_prompt(client, run, f"of={run.uid}@1,{run.uid}@2", nth=2)
    assert "step 1 says 1" in second and "step 2 says 1" in second and "response 2 of 3" in second
    third = open_first_prompt(client, run, f"of={run.uid}@1,{run.uid}@2", nth=3)
    assert "This side has only 2 responses." in third and "step 2 says 2" in third and 'data-key="l"' not in third


def test_an_unpaired_prompt_can_be_opened(run: Run, client: Client, mate: User) -> None:
    index_evaluation(run, 3, right=lambda n: True, prompts=13)
    client.force_login(mate)
    rendered = open_first_prompt(client, run, f"of={run.uid}@1,{run.uid}@3", only="unpaired")
    assert (
        "This step does not contain the prompt." in rendered
        and "#### 12" in rendered
        and 'data-key="d"' not in rendered
    )


@pytest.mark.parametrize(
    "odd", ["sel=nothing", "sel=%00", "nth=-1", "nth=999999", "nth=x", "diff=2", "sel=" + "x" * 3000]
)
def test_invalid_parameters_of_the_open_prompt_are_ignored(run: Run, client: Client, mate: User, odd: str) -> None:
    client.force_login(mate)
    assert "12" in get_page(client, f"of={run.uid}@1,{run.uid}@2&{odd}")


def test_hostile_texts_of_an_open_prompt_are_escaped(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project, "hostile", config={"note": HOSTILE})
    for step in (1, 2):
        index_file(run, lines({"prompt": HOSTILE, "response": HOSTILE * step, "score": step}), step, split="eval")
    client.force_login(mate)
    assert "<script>alert" not in open_first_prompt(client, run, f"of={run.uid}@1,{run.uid}@2", diff=1)


def test_a_setting_that_differs_from_the_first_run_is_highlighted(project: Project, client: Client, mate: User) -> None:
    runs = [builders.run(project, name, config={"lr": lr, "n": 8}) for name, lr in (("a", 1), ("b", 1), ("c", 2))]
    for run in runs:
        index_evaluation(run, 1, right=lambda n: True)
    client.force_login(mate)
    rendered = get_page(client, "of=" + ",".join(f"{run.uid}@1" for run in runs))
    assert rendered.count("wrap-any other") == 1 and "1 setting differs" in rendered


def test_a_single_step_offers_the_usual_steps_to_compare_with(
    run: Run, project: Project, client: Client, mate: User
) -> None:
    other, trained = (builders.run(project, name, uid=name) for name in ("other", "trained"))
    index_evaluation(other, 7, right=bool)
    index_evaluation(trained, 7, right=bool, split="train")
    elsewhere = builders.run(builders.project("elsewhere"), "strange", uid="strange")
    index_evaluation(elsewhere, 7, right=bool)
    client.force_login(mate)
    offered = re.findall(r'class="chip" href="([^"]*)"', get_page(client, f"of={run.uid}@2&split=eval"))
    assert [html.unescape(link) for link in offered] == [
        f"?of={run.uid}@2,{run.uid}@1&split=eval",
        f"?of={run.uid}@2,other@latest&split=eval",
    ]
    assert "Both correct" in get_page(client, html.unescape(offered[1])[1:])


@pytest.mark.parametrize("change, shown", [(0.2, "0"), (-0.2, "0"), (0.6, "+1"), (-12.4, "−12")])
def test_a_change_that_rounds_to_zero_has_no_sign(change: float, shown: str) -> None:
    assert table.format_statistic("length", ComparedMean(8.0, change, (-20.0, 20.0))).change == shown


def test_a_change_of_a_share_is_in_points() -> None:
    shown = table.format_statistic("truncated", ComparedMean(0.25, -0.617, (-0.871, -0.296)))
    assert (shown.value, shown.change, shown.interval) == ("25.0 %", "−61.7 pt", "[−87.1, −29.6]")


def test_an_open_response_can_be_added_to_a_finding_or_copied_for_a_chat(
    run: Run, project: Project, client: Client, mate: User
) -> None:
    cells = f"of={run.uid}@1,{run.uid}@2"
    client.force_login(mate)
    sel = re.findall(r"sel=(\w+)", get_page(client, cells))[0]
    open_page = get_page(client, f"{cells}&sel={sel}")
    sample_ids = re.findall(r'<article class="board-column" id="answer-[AB]" data-id="(\w+)"', open_page)
    assert re.findall(r'/findings/add/\?sample=(\w+)" data-key="q"', open_page) == sample_ids and len(sample_ids) == 2
    assert [chat.split(" · ")[1] for chat in re.findall(r'data-key="Q" data-chat="([^"]*)"', open_page)] == [
        "eval step 1",
        "eval step 2",
    ]
    client.force_login(builders.member(project, "vera", "viewer"))
    viewer_page = get_page(client, f"{cells}&sel={sel}")
    assert 'data-key="q"' not in viewer_page and viewer_page.count('data-key="Q"') == 2


def test_a_significant_change_is_not_shown_as_zero() -> None:
    mean = ComparedMean(12.31, 0.31, (0.04, 0.42))
    shown = table.format_statistic("length", mean)
    assert (shown.value, shown.change, shown.interval, bool(shown.grade)) == ("12", "+0.31", "[+0.04, +0.42]", True)
