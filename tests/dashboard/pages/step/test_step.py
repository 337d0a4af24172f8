"""The charts, counts, menus and search of the step page: they show the samples that match the query."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client

from rollouts.ingest import mark_superseded_steps
from rollouts.models import Project, Replay, Run, Sample
from rollouts.samples import TEXT_PROPERTY_BITS
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    index_file(run, lines(*build_generations(2)), 2)
    return run


def build_generations(step: int, count: int = 8) -> list[dict[str, Any]]:
    """Scores from 0 to 1."""
    return [
        generation(f"What is {n // 2}+1?", f"Step {step} says\n#### {n}", n / max(1, count - 1), group=str(n // 2))
        for n in range(count)
    ]


def get_panel(client: Client, url: str, name: str = "result") -> str:
    answer = client.get(url, headers={"HX-Request": "true", "HX-Target": name})
    assert answer.status_code == 200
    return answer.content.decode()


def find_links(page: str, selector: str) -> list[tuple[str, str]]:
    """[(url, text)] of the links that the pattern `selector` finds."""
    return [(html.unescape(link), text) for link, text in re.findall(selector, collapse_spaces(page))]


def read_lines(answer: Any) -> list[bytes]:
    """The lines of a streamed file."""

    async def read_stream() -> bytes:
        return b"".join([piece async for piece in answer.streaming_content])

    return async_to_sync(read_stream)().splitlines()


def read_tiles(page: str) -> dict[str, str]:
    """The numbers above the table by name."""
    found = re.findall(r'<dt class="label">(.*?)</dt><dd>(.*?)</dd>', collapse_spaces(page))
    return {name: " ".join(re.sub(r"<[^>]+>", " ", value).split()) for name, value in found}


@pytest.mark.parametrize(
    ("is_concurrent", "samples", "mean", "groups", "correct"), [(True, 6, "0.833", 3, 5), (False, 4, "1.000", 2, 4)]
)
def test_the_numbers_of_a_step_are_those_of_all_attempts_that_ran_at_the_same_time(
    run: Run, client: Client, mate: User, is_concurrent: bool, samples: int, mean: str, groups: int, correct: int
) -> None:
    for name, rows in (
        ("a", build_generations(3, 2)),
        ("b", [row | {"score": 1.0} for row in build_generations(3, 4)]),
    ):
        builders.attempt(run, name)
        index_file(run, lines(*rows), 3, attempt=name)
    first = run.attempts.get(key="a")
    run.attempts.filter(key__in="ab").update(concurrent_with=first if is_concurrent else None)
    mark_superseded_steps(run)
    client.force_login(mate)
    page = get_panel(client, f"/runs/{run.uid}/steps/3/")
    assert f'data-total="{samples}"' in page and f"of {samples} recorded samples" in page
    given = read_tiles(page)
    assert given["mean score"].startswith(f"{mean} +") and given["correct"].startswith(f"{correct} of {samples} ")
    assert (given["groups"], given["zero variance"]) == (str(groups), f"2 of {groups}")
    strip = get_panel(client, f"/runs/{run.uid}/steps/3/", "strip")
    assert "Mean score of 2 train steps" in strip and f'data-samples="{samples}"' in strip
    (entry,) = client.get(f"/go/?q=3&run={run.uid}").json()["results"]
    assert entry["detail"] == f"train · {samples} samples · mean {mean[:4]}"
    own = get_panel(client, f"/runs/{run.uid}/steps/3/?attempt=a")
    assert 'data-total="2"' in own and read_tiles(own)["mean score"].startswith("0.500")


CELL = r'<td class="num"><a href="([^"]*)"[^>]*>([\d,]+)</a>'


def test_charts_counts_and_export_reflect_the_query(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_panel(client, f"/runs/{run.uid}/steps/2/?q=score<0.5")
    assert re.findall(r'class="count">(\d+)<', page) == ["0", "1", "3", "0", "0"]
    assert "Score and length of 4 samples" in page
    assert re.search(r'<b>0\.214</b><span class="muted"[^>]*>\(all: 0\.500\)', collapse_spaces(page))
    address = html.unescape(re.findall(r'href="([^"]*/exports/samples/[^"]*)"', page)[0])
    assert len(read_lines(client.get(address))) == 4


def test_a_bar_adds_its_term_to_the_query_and_removes_it_again(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    url = f"/runs/{run.uid}/steps/2/"
    bars = r'<a class="bin quiet" href="([^"]*)" aria-current="(\w+)"'
    assert find_links(get_panel(client, f"{url}?q=says or no"), bars)[2] == (
        "?q=%28says+or+no%29+score>0+score<0.5",
        "false",
    )
    assert find_links(get_panel(client, f"{url}?q=says score>0 score<0.5"), bars)[2] == ("?q=says", "true")


def test_the_scatter_has_a_table_whose_cells_filter_the_samples(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    cells = find_links(get_panel(client, f"/runs/{run.uid}/steps/2/?q=says"), CELL)
    assert sum(int(count) for _, count in cells) == 8
    for link, count in cells:
        assert f'data-total="{count}"' in get_panel(client, f"/runs/{run.uid}/steps/2/{link}"), link


def test_the_charts_of_one_sample_say_so_in_the_singular(run: Run, reader: Client) -> None:
    page = html.unescape(reader.get(f"/runs/{run.uid}/steps/2/", {"q": "score=1"}).content.decode())
    assert 'aria-label="Mean score of 1 train step"' in page and 'title="1 sample, score>=1"' in page
    assert "Score and length of 1 sample;" in page and "1 sample by score and characters" in page


def test_a_query_that_fails_leaves_no_region_in_the_scatter_of_all_samples(run: Run, reader: Client) -> None:
    """Its result is the one without a query, which is cached."""
    url, region = f"/runs/{run.uid}/steps/2/", 'class="region"'
    failed = reader.get(url, {"q": "score<0.5 unknown_key>1"})
    assert failed.context["result"].error and region not in failed.content.decode()
    assert region not in reader.get(url).content.decode()
    assert region in reader.get(url, {"q": "score<0.5"}).content.decode()


def test_a_response_whose_text_was_not_recorded_has_no_length_in_the_scatter(run: Run, reader: Client) -> None:
    url, rows = f"/runs/{run.uid}/steps/2/", Sample.objects.filter(step__run=run)
    rows.filter(ordinal=1).update(chars=0, facets=TEXT_PROPERTY_BITS["no-text"])
    rows.filter(ordinal=2).update(chars=2)  # in the same bar, and as short
    page = get_panel(reader, url)
    cells = find_links(page, CELL)
    assert "Score and length of 7 samples" in page and sum(int(count) for _, count in cells) == 7
    for link, count in cells:
        assert f'data-total="{count}"' in get_panel(reader, f"{url}{link}"), link


def test_many_points_are_merged_and_none_is_lost(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(*build_generations(3, 2100)), 3)
    client.force_login(mate)
    page = get_panel(client, f"/runs/{run.uid}/steps/3/")
    assert "Score and length of 2,100 samples" in page
    assert "Large dots are several samples" in page
    assert page.count("h.1") < 2000
    assert sum(int(count.replace(",", "")) for _, count in find_links(page, CELL)) == 2100


def test_scores_beyond_one_are_shown_in_round_bins(project: Project, client: Client, mate: User) -> None:
    run = builders.run(project, "points")
    index_file(run, lines(*(generation(response="x" * n, score=float(n * 7)) for n in range(10))), 1)
    client.force_login(mate)
    page = get_panel(client, f"/runs/{run.uid}/steps/1/")
    assert re.findall(r'data-above="([^"]*)"', page)[:2] == ["score&gt;=0", "score&gt;=10"]
    assert [int(count) for count in re.findall(r'class="count">(\d+)<', page)] == [2, 1, 2, 1, 2, 1, 1]


def test_the_row_of_the_shown_sample_is_selected_before_any_script_runs(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    url = f"/runs/{run.uid}/steps/2/"
    ids = re.findall(r'<tr id="r-\w+" data-id="(\w+)"', client.get(url).content.decode())
    for query, shown in (("", ids[0]), (f"?sel={ids[3]}", ids[3])):
        page = client.get(url + query).content.decode()
        assert re.findall(r'data-id="(\w+)"[^>]* aria-selected="true"', page) == [shown]
        assert re.findall(r'<article[^>]* data-id="(\w+)"', page) == [shown]


def test_all_steps_are_searched_newest_first_and_the_page_says_how_far(
    run: Run, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.pages.step.query_result.SEARCH_TIME_BUDGET", 0.0)
    monkeypatch.setattr("rollouts.query.body_scan.parts.MAX_FILES_AT_ONCE", 8)
    for step in range(3, 22):
        index_file(run, lines(*build_generations(step, 1)), step)
    client.force_login(mate)
    url = f"/runs/{run.uid}/steps/all/?q=says"
    page = client.get(url).content.decode()
    assert "searched 8 of 20 steps, matches: 8" in page
    assert re.findall(r'<td class="num c-step">(\d+)</td>', page)[0] == "21"
    next_url = html.unescape(re.findall(r'hx-get="([^"]*beyond=[^"]*)"', page)[0])
    assert "searched 16 of 20 steps, matches: 16" in get_panel(client, next_url)
    last = get_panel(client, f"{url}&beyond=5")
    assert "searched" not in last
    assert 'data-total="27"' in last


@pytest.mark.parametrize(("most", "newest", "zero_scores"), [(8, 1, 1), (15, 1, 1), (16, 2, 2), (1, 1, 1), (24, 3, 3)])
def test_charts_of_very_many_samples_use_the_newest_steps_and_say_so(
    run: Run, reader: Client, monkeypatch: pytest.MonkeyPatch, most: int, newest: int, zero_scores: int
) -> None:
    monkeypatch.setattr("dashboard.pages.step.query_result.MAX_COUNTED_SAMPLES", most)
    for step in (3, 4):
        index_file(run, lines(*build_generations(step)), step)
    for q, total in (("", 24), ("score<=0", 3)):
        page = get_panel(reader, f"/runs/{run.uid}/steps/all/?q={q}")
        assert ("chips and charts: the newest" in page) == (newest < 3)
        assert f"the newest {newest} of 3 steps" in page or newest == 3
        assert re.findall(r'class="count">(\d+)<', page)[1] == str(zero_scores)
        assert f'data-total="{total}"' in page
        assert sorted(re.findall(r'<td class="num c-step">([234])</td>', page)) == sorted("234" * (total // 3))


def test_the_table_is_sorted_by_a_menu_in_words(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    page = get_panel(client, f"/runs/{run.uid}/steps/2/")
    assert "sort: score, lowest first" in collapse_spaces(page)
    assert 'href="?sort=-len"' in page and 'class="quiet" href="?sort=len"' in page
    assert "newest first" not in page
    assert "sort: length, longest first" in collapse_spaces(get_panel(client, f"/runs/{run.uid}/steps/2/?sort=-len"))
    Sample.objects.filter(step__run=run).update(tokens=3)
    page = get_panel(client, f"/runs/{run.uid}/steps/2/")
    assert 'class="quiet" href="?sort=tokens"' in page and 'class="quiet" href="?sort=len"' not in page
    assert "sort: step, newest first" in collapse_spaces(get_panel(client, f"/runs/{run.uid}/steps/all/"))


def test_the_strip_marks_the_steps_that_were_replayed(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(*build_generations(3)), 3)
    step = run.steps.get(step=3)
    Replay.objects.create(run=run, attempt=step.attempt, step=3, outcome="hit")
    Replay.objects.create(run=run, attempt=step.attempt, step=2, outcome="miss")
    client.force_login(mate)
    strip = get_panel(client, f"/runs/{run.uid}/steps/latest/", "strip")
    assert strip.count('class="reuse"') == 1
    assert "step 3 · mean 0.50 · 1 replayed" in strip


@pytest.mark.parametrize(
    ("q", "missing"),
    [
        ("adv<0", ["adv"]), ("score>9", []), ("tokens>1 adv<0 or tokens>2", ["tokens", "adv"]), ("-adv<0 score>9", []),
        ("source:gsm8k", ["source"]), ("group:zz", []), ("score<1", []), ("score<<", []),
    ],
)  # fmt: skip
def test_a_query_for_a_value_that_was_not_recorded_says_so(
    run: Run, reader: Client, q: str, missing: list[str]
) -> None:
    page = reader.get(f"/runs/{run.uid}/steps/2/", {"q": q}).content.decode()
    assert re.findall(r"No sample of this step has <code>(\w+)</code>", page) == missing
    assert "the run did not record it" not in reader.get(f"/runs/{run.uid}/steps/all/", {"q": q}).content.decode()


def test_samples_filtered_by_the_trainer_are_marked_and_can_be_queried(run: Run, reader: Client) -> None:
    rows = [{"prompt": "2+2?", "response": f"it is {n}", "score": n % 2, "group": "a"} for n in range(4)]
    index_file(run, lines(*rows, {**rows[0], "response": "dropped", "filtered": True}), 3, format="native")
    page = get_panel(reader, f"/runs/{run.uid}/steps/3/")
    assert page.count(">FILTERED</span>") == 1
    chips = find_links(page, r'href="([^"]*is(?::|%3A)filtered[^"]*)"[^>]*>([^<]*<b>[^<]*)')
    assert [text for _, text in chips] == ["Filtered<b>1"]
    assert get_panel(reader, f"/runs/{run.uid}/steps/3/?q=is:filtered").count('<tr id="r-') == 1


def test_staleness_and_time_are_columns_where_they_were_recorded(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    assert "c-stale" not in get_panel(client, f"/runs/{run.uid}/steps/2/")
    rows = [
        {
            "prompt": "q",
            "response": f"r{n}",
            "policy_version": 9 - n,
            "trainer_version": 9,
            "timing": {"total": 10 * n + 2},
        }
        for n in range(2)
    ]
    index_file(run, lines(*rows), 3, format="native")
    page = collapse_spaces(get_panel(client, f"/runs/{run.uid}/steps/3/?sort=-duration"))
    assert "c-stale" in page
    assert re.search(r"12 s.*2 s", page)
    assert 'sort=duration"' in page and "slowest first" in page
    body = client.get(f"/samples/{run.steps.get(step=3).rows.get(staleness=1).pk}/").content.decode()
    assert "1 version stale" in collapse_spaces(body) and "12 s" in body


def read_step(page: str) -> set[str]:
    """The steps that the parts of a page or panel are about."""
    patterns = (
        r"<b>\s*step (\d+)\s*</b>",
        r'data-step="(\d+)"',
        r"pin step (\d+)",
        r"Step (\d+) says",
        r", step (\d+)",
    )
    return {step for pattern in patterns for step in re.findall(pattern, page)}


def test_panels_of_the_latest_step_stay_at_the_step_that_the_page_shows(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    url = f"/runs/{run.uid}/steps/latest/"
    index_file(run, lines(*build_generations(3)), 3)
    for name in ("strip", "result", "pin", "table"):
        headers = {"HX-Request": "true", "HX-Target": name}
        assert read_step(client.get(url, headers=headers).content.decode()) == {"3"}, name
        stays = client.get(url, headers={**headers, "X-Shown-Step": "2"})
        assert read_step(stays.content.decode()) == {"2"}, name
        assert "X-Shown-Step" in stays["Vary"]
    assert 'data-last="3" data-samples="8"' in get_panel(client, url, "strip")


def test_a_sample_in_the_url_decides_step_and_split_of_the_page(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    old = client.get(f"/runs/{run.uid}/steps/2/").context["sample"]
    index_file(run, lines(*build_generations(3)), 3)
    page = client.get(f"/runs/{run.uid}/steps/latest/?sel={old.pk}").content.decode()
    assert read_step(page) == {"2"}
    answer = client.get(f"/runs/{run.uid}/steps/3/?q=says&sel={old.pk}")
    assert (answer.status_code, answer["Location"]) == (302, f"/runs/{run.uid}/steps/2/?q=says&sel={old.pk}")
    index_file(run, lines(*build_generations(2, 4)), 2, split="eval", source="eval/2.jsonl")
    other = client.get(f"/runs/{run.uid}/steps/2/?split=eval").context["sample"]
    answer = client.get(f"/runs/{run.uid}/steps/2/?sel={other.pk}")
    assert (answer.status_code, answer["Location"]) == (302, f"/runs/{run.uid}/steps/2/?split=eval&sel={other.pk}")
    assert client.get(answer["Location"]).context["split"] == "eval"


@pytest.mark.parametrize(
    ("steps", "position"),
    [([1, 2, 3], "of 3"), ([0, 1, 2, 3], "of 0–3"), ([5, 10], "of 5–10"), ([7], "of 7</span>")],
)
def test_the_position_of_a_step_shows_the_range_of_steps(
    project: Project, client: Client, mate: User, steps: list[int], position: str
) -> None:
    run = builders.run(project, "numbered")
    for step in steps:
        index_file(run, lines(*build_generations(step, 1)), step)
    client.force_login(mate)
    assert position in collapse_spaces(get_panel(client, f"/runs/{run.uid}/steps/latest/", "strip"))
