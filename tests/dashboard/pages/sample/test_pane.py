"""The page of a sample: the views of a response, what it is compared with, and every key to copy and download."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.sample import fields_view, token_view
from rollouts.models import Project, Run, Sample
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

pytestmark = pytest.mark.one_database

COUNT = 9000  # tokens: more than two windows


def build_row(step: int, index: int, score: float, **more: Any) -> dict[str, Any]:
    message = f"Step {step}, number {index}.\n#### {index}"
    return {"prompt": "What is 1+1?", "response": message, "score": score, "group": "a", "index": index, **more}


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step in (1, 2):
        index_file(run, lines(*[build_row(step, n, n / 3) for n in range(4)]), step, format="native")
    other = builders.run(project, "other")
    index_file(other, lines(build_row(1, 0, 1.0)), 1, format="native")
    return run


def get_sample(run: Run, step: int, index: int) -> Sample:
    return Sample.objects.get(step__run=run, step__step=step, index=index)


def get_page(client: Client, sample: Sample, query: str = "") -> str:
    response = client.get(f"/samples/{sample.pk}/{query}")
    assert response.status_code == 200
    return response.content.decode()


def test_a_large_group_says_its_size_and_shows_the_sample(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(*[build_row(3, n, 0.0) for n in range(70)]), 3, format="native")
    client.force_login(mate)
    last = get_sample(run, 3, 69)
    page = get_page(client, last)
    assert "65 of 70 responses" in collapse_spaces(page)
    assert re.search(rf'data-sample="{last.pk}"[^>]*\s+aria-current="true"', page)


def test_a_response_is_compared_with_the_best_of_its_group_first(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, get_sample(run, 2, 1), "?view=diff")
    assert "best of group (n=3, score 1.00)" in page
    assert "data-there>Step 2, number 3.\n#### 3<" in page
    assert "data-here>Step 2, number 1.\n#### 1<" in page


@pytest.mark.parametrize(
    ("vs", "expected"),
    [("worst", "Step 2, number 0."), ("earlier", "Step 1, number 1."), ("other", "Step 1, number 0.")],
)
def test_the_url_says_what_a_response_is_compared_with(
    run: Run, client: Client, mate: User, vs: str, expected: str
) -> None:
    client.force_login(mate)
    name = Run.objects.get(name="other").uid if vs == "other" else vs
    assert f"data-there>{expected}" in get_page(client, get_sample(run, 2, 1), f"?view=diff&vs={name}")


def test_the_key_v_cycles_through_everything_that_can_be_compared(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    seen, vs = [], "best"
    for _ in range(4):
        page = get_page(client, get_sample(run, 2, 1), f"?view=diff&vs={vs}")
        vs = page.partition('data-key="v"')[0].rpartition('data-vs="')[2].partition('"')[0]
        seen.append(vs)
    assert seen == ["worst", "earlier", Run.objects.get(name="other").uid, "best"]


def test_a_run_with_many_later_responses_is_compared_at_the_nearest_step(run: Run, reader: Client) -> None:
    """It does not hide an older run."""
    sample, other = get_sample(run, 2, 1), Run.objects.get(name="other")
    older = builders.run(run.project, "older")
    index_file(older, lines(build_row(4, 0, 1.0)), 4, format="native")
    Run.objects.filter(pk=older.pk).update(created_at=run.created_at)
    index_file(other, lines(*(build_row(3, n, 1.0) for n in range(520))), 3, format="native")
    assert "data-there>Step 1, number 0." in get_page(reader, sample, f"?view=diff&vs={other.uid}")
    assert "data-there>Step 4, number 0." in get_page(reader, sample, f"?view=diff&vs={older.uid}")


def test_a_run_of_another_project_is_never_compared_with(run: Run, client: Client, mate: User) -> None:
    hidden = builders.run(builders.project("secret"), "nobody-may-see")
    index_file(hidden, lines(build_row(1, 0, 1.0)), 1, format="native")
    client.force_login(mate)
    page = get_page(client, get_sample(run, 2, 1), f"?view=diff&vs={hidden.uid}")
    assert "nobody-may-see step" not in page
    assert "data-there>Step 2, number 3." in page


def test_a_response_with_nothing_to_compare_says_so(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project)
    index_file(run, lines(build_row(1, 0, 1.0)), 1, format="native")
    client.force_login(mate)
    assert "Nothing to compare with: this prompt has only one response" in get_page(
        client, get_sample(run, 1, 0), "?view=diff"
    )


def test_each_view_takes_few_queries(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client.force_login(mate)
    for view in ("raw", "diff", "json"):
        with django_assert_max_num_queries(30):
            get_page(client, get_sample(run, 2, 1), f"?view={view}")


@pytest.fixture
def sample_with_tokens(project: Project) -> Sample:
    """A sample of `COUNT` tokens: token 8,000 is unlikely, the trainer's log-probs are 0.25 above those sampled."""
    logprobs = [-0.5] * COUNT
    logprobs[8000] = -9.0
    run = builders.run(project, "tokens")
    more = {
        "response_ids": list(range(COUNT)),
        "logprobs": logprobs,
        "old_logprobs": [value + 0.25 for value in logprobs],
        "entropy": [1.5] * COUNT,
        "advantages": [-1.0] * COUNT,
        "response_mask": [1, 0] * (COUNT // 2),
        "<i>own": [0.5] * COUNT,
        "short": [1.0, 2.0],
    }
    index_file(run, lines(build_row(1, 0, 1.0, **more)), 1, format="native")
    return get_sample(run, 1, 0)


def test_tokens_are_shown_in_windows_below_a_chart_of_all_tokens(
    sample_with_tokens: Sample, client: Client, mate: User
) -> None:
    client.force_login(mate)
    page = get_page(client, sample_with_tokens, "?view=tokens")
    assert "Tokens 0–2,047 of 9,000" in page
    assert 'data-token-chart="9000"' in page
    assert 'data-low-after="8000"' in page
    last = get_page(client, sample_with_tokens, "?view=tokens&at=8000")
    assert "Tokens 6,144–8,191 of 9,000" in last
    assert '<b class="h4 low" aria-current="true">8000</b>' in last


def test_every_list_with_a_value_per_token_can_be_selected(
    sample_with_tokens: Sample, client: Client, mate: User
) -> None:
    client.force_login(mate)
    page = get_page(client, sample_with_tokens, "?view=tokens&by=mismatch")
    for label in ("log-prob", "entropy", "advantage", "mask", "rollout − train", "&lt;i&gt;own"):
        assert f">{label}</a>" in collapse_spaces(page)
    assert ">short</a>" not in collapse_spaces(page)
    assert '<b class="h2">0</b>' in page  # 0.25 apart
    assert "&quot;rollout − train&quot;:[-0.25," in page.replace("\\u2212", "−")


def test_the_table_of_tokens_has_the_same_values(sample_with_tokens: Sample, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_page(client, sample_with_tokens, "?view=tokens&as=table&at=8000")
    assert page.count('<td class="num muted">') == token_view.WINDOW_TOKENS
    assert ">-9</td>" in page
    assert page.count('class="low"') == page.count('<tr class="low" aria-current="true">') == 1


@pytest.mark.parametrize("query", ["at=x", "at=99999999999", "at=-1", "by=nothing", "at=²", "as=x", "vs=%00", "by=%00"])
def test_invalid_parameters_of_the_token_view_are_ignored(
    sample_with_tokens: Sample, client: Client, mate: User, query: str
) -> None:
    client.force_login(mate)
    assert "of 9,000" in get_page(client, sample_with_tokens, f"?view=tokens&{query}")
    get_page(client, sample_with_tokens, f"?view=diff&{query}")


def test_token_values_that_are_no_numbers_are_ignored() -> None:
    assert token_view.parse_token_values([1.0, "2"], 2) is None
    assert token_view.parse_token_values([10**400, 1], 2) is None
    result = token_view.parse_token_values([None, float("inf"), True], 3)
    assert result is not None
    assert result[2] == 1
    assert str(result[:2]) == "[nan nan]"


@pytest.mark.parametrize(
    ("by", "values", "kinds"),
    [
        ("logprob", [0.0, -0.7, -2.4, -5.0, -9.0, math.nan], ["", "h1", "h2", "h3", "h4", ""]),
        ("mismatch", [-0.3, 0.04, 1.0], ["h2", "", "h4"]),
        ("mask", [1.0, 0.0, math.nan], ["", "m0", ""]),
        ("advantage", [0.2, 0.6, 2.0, 0.0, -0.2, -0.6, -2.0, math.nan], ["p1", "p2", "p3", "", "n1", "n2", "n3", ""]),
    ],
)
def test_the_colour_of_a_token_shows_how_far_its_value_is_from_zero(
    by: str, values: list[float], kinds: list[str]
) -> None:
    assert token_view.choose_level_classes(by, np.array(values)) == kinds


def test_a_bar_of_the_chart_shows_the_most_extreme_of_its_tokens() -> None:
    values = np.zeros(2 * token_view.MAX_TOKEN_BARS - 1)
    values[[4, 478]] = -4.0, 1.0
    rendered = {
        bar.x: (bar.y, bar.height, bar.level) for bar in token_view.build_token_bars(values, "advantage", -4.0, 1.0)
    }
    assert len(rendered) == token_view.MAX_TOKEN_BARS
    assert {x: bar for x, bar in rendered.items() if bar[1]} == {0.835: (20.0, 80.0, "n3"), 99.791: (0.0, 20.0, "p2")}


def test_tokens_are_grouped_in_blocks_of_whole_lines() -> None:
    texts = ["word\n" if at % 100 == 50 else "word" for at in range(300)]
    window = token_view.TokenWindow(0, 300, 300, None, "", {}, range(300), texts)
    assert [block.count("<b>") for block in token_view.render_token_spans(window)] == [151, 149]
    window.texts = None
    assert [block.count("<b>") for block in token_view.render_token_spans(window)] == [128, 128, 44]


def test_every_key_can_be_downloaded_as_it_was_written(sample_with_tokens: Sample, client: Client, mate: User) -> None:
    client.force_login(mate)
    response = client.get(f"/samples/{sample_with_tokens.pk}/file/", {"key": "response"})
    assert response.content.decode() == "Step 1, number 0.\n#### 0"
    assert response.headers["Content-Disposition"].startswith("attachment;")
    assert response.headers["Content-Type"].startswith("text/plain")
    assert json.loads(client.get(f"/samples/{sample_with_tokens.pk}/file/", {"key": "<i>own"}).content) == [0.5] * COUNT
    full = json.loads(client.get(f"/samples/{sample_with_tokens.pk}/file/").content)
    assert full["response_ids"] == list(range(COUNT))
    assert full["short"] == [1.0, 2.0]
    assert not {"source_dumps", "textless", "extras"} & set(full), "fields of our own, not of the trainer"
    assert client.get(f"/samples/{sample_with_tokens.pk}/file/", {"key": "nothing"}).status_code == 404


def test_a_stranger_downloads_nothing(sample_with_tokens: Sample, client: Client, stranger: User) -> None:
    client.force_login(stranger)
    assert client.get(f"/samples/{sample_with_tokens.pk}/file/").status_code == 404


def test_the_page_of_all_keys_shows_the_beginning_of_long_ones(
    sample_with_tokens: Sample, client: Client, mate: User
) -> None:
    client.force_login(mate)
    page = get_page(client, sample_with_tokens, "?view=json")
    assert "8,960 more values in the download" in page
    assert len(page) < 60_000
    assert fields_view.build_field_entry("one", [0] * 41).more == "1 more value"
    assert fields_view.build_field_entry("one", "x" * 4001).more == "1 more character"


def test_a_sample_shows_its_answer_next_to_the_expected_one(run: Run, reader: Client) -> None:
    index_file(run, lines(build_row(3, 0, 0.0, ground_truth="2", group="b")), 3, format="native")
    head = get_page(reader, get_sample(run, 3, 0)).split('class="expected">')[1].split("</span>")[0]
    assert collapse_spaces(head).strip() == 'got<b class="mono">0</b>expected<b class="mono">2</b>'
    row_without_answer = {**build_row(4, 0, 0.0, ground_truth="2", group="b"), "response": "I do not know"}
    index_file(run, lines(row_without_answer), 4, format="native")
    assert '"expected">expected<b' in collapse_spaces(get_page(reader, get_sample(run, 4, 0)))


def test_segments_and_tools_are_listed_with_the_other_recorded_fields(run: Run, client: Client, mate: User) -> None:
    """AReaL records which part of a completion the model wrote, prime-rl which tools it had."""
    more = {"segments": [{"role": "context", "len": 3}], "tools": [{"name": "calculator_of_primes"}]}
    index_file(run, lines(build_row(3, 0, 0.5, **more)), 3, format="native")
    client.force_login(mate)
    page = get_page(client, get_sample(run, 3, 0))
    rendered = page[page.index("Other recorded fields") :]
    assert '<th scope="row">segments</th>' in rendered and "&quot;context&quot;" in rendered
    assert '<th scope="row">tools</th>' in rendered and "calculator_of_primes" in rendered


def test_step_links_of_an_evaluated_sample_stay_in_its_split(run: Run, reader: Client) -> None:
    index_file(run, lines(build_row(3, 0, 1.0)), 3, format="native", split="eval", source="eval/3")
    page = get_page(reader, get_sample(run, 3, 0))
    for step in ("3", "all"):
        assert f'href="/runs/{run.uid}/steps/{step}/?split=eval"' in page


def test_a_superseded_sample_links_to_its_attempt(run: Run, reader: Client) -> None:
    superseded = get_sample(run, 2, 1)
    index_file(run, lines(build_row(2, 0, 1.0)), 2, format="native", attempt="again")
    link = f"/runs/{run.uid}/steps/2/?sel={superseded.pk}&amp;attempt=files"
    assert f'href="{link}"' in get_page(reader, superseded)
    assert "of 4 recorded samples" in reader.get(link.replace("&amp;", "&")).content.decode()
