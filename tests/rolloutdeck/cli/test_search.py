"""`rolloutdeck search` against a real server: all runs of a project, the newest first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboard.api.views import search as api_search
from rolloutdeck.cli.entry import main
from rollouts.errors import QueryLimitError
from rollouts.models import Project
from rollouts.runs import RunMatches
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)
Search = Callable[..., tuple[int, str, str]]


def create_run(project: Project, name: str, *responses: str, **more: Any) -> None:
    rows = [{"prompt": "p", "response": text, "score": n, **more} for n, text in enumerate(responses)]
    index_file(builders.run(project, name), lines(*rows), 1)


@pytest.fixture
def search(node: Path, capsys: pytest.CaptureFixture[str]) -> Search:
    builders.run(Project.objects.get(), "empty")  # no query is wrong in a run without samples
    create_run(Project.objects.get(), "old", "a quokka", "b")
    create_run(Project.objects.get(), "without", "nothing", lang="zh")
    create_run(Project.objects.get(), "new", *(f"quokka {n}" for n in range(30)))
    capsys.readouterr()

    def run(*words: object) -> tuple[int, str, str]:
        status = main(["search", *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_the_samples_of_all_runs_are_one_table_the_newest_run_first(search: Search) -> None:
    status, out, err = search("quokka", "--limit", 100)
    head, *rows = out.splitlines()
    assert status == 0 and head.split()[:3] == ["run", "step", "score"]
    assert [row.split()[0] for row in rows] == ["new"] * 30 + ["old"]
    assert "a quokka" in rows[-1] and "31 of 31 samples of 2 runs in project math; 3 runs searched.\n" in err


def test_the_search_stops_at_the_limit_and_searches_no_further_run(search: Search) -> None:
    status, out, err = search("quokka", "--limit", 25)
    assert status == 0 and len(out.splitlines()) == 26 and "old" not in out
    assert "25 of 30 samples of 1 run in project math; 1 run searched. Stopped at --limit 25." in err


def test_json_and_full_texts_name_the_run(search: Search) -> None:
    rows = [json.loads(line) for line in search("quokka", "--json")[1].splitlines()]
    assert len(rows) == 20 and {row["run_name"] for row in rows} == {"new"} and rows[0]["tail"].startswith("quokka")
    text = search('"a quokka"', "--text")[1]
    assert "=== old, step 1, score 0, 8 characters, " in text and "--- response\na quokka\n" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("is:trncated",), "Did you mean `truncated`"),
        (("score>",), "The query is incomplete"),
        ((" ",), "The query is empty"),
        (("a", "--limit", "0"), "--limit must be at least 1."),
        (("a", "--project", "nosuch"), "nosuch"),
        (("scor=1",), "No sample here has the key `scor`. Did you mean `score`?"),
        (("disagrees:score.v3",), "This run has no re-score `score.v3`."),
    ],
)
def test_a_wrong_query_or_option_is_explained(search: Search, words: tuple[str, ...], says: str) -> None:
    status, out, err = search(*words)
    assert status == 2 and out == "" and says in err and err.count("\n") == 1


def test_no_match_and_a_key_of_some_runs_are_no_errors(search: Search) -> None:
    status, out, err = search("wombat")
    assert (status, out) == (0, "No samples.\n") and "0 of 0 samples of 0 runs in project math; 3 runs searched." in err
    assert "1 of 1 samples of 1 run" in search("lang=zh")[2]
    status, _, err = search("lang=en")
    assert status == 0 and "Of 2 runs: No sample here has the key `lang`." in err


def test_a_large_run_is_named_with_the_command_that_searches_more(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = api_search.search_runs

    def mark_old_run_partial(*words: Any, **more: Any) -> Iterator[RunMatches]:
        return (replace(part, is_partial=part.run.name == "old") for part in real(*words, **more))

    monkeypatch.setattr(api_search, "search_runs", mark_old_run_partial)
    status, _, err = search("quokka", "--limit", 100)
    assert status == 0 and "old is large: only its newest steps were searched" in err
    assert "`rolloutdeck samples --project math --run old --step all --q QUERY`" in err and "--split eval" in err
    assert "new is large" not in err


def test_a_search_that_fails_midway_says_why(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    real = api_search.search_runs

    def fail(*words: Any, **more: Any) -> Iterator[RunMatches]:
        yield next(real(*words, **more))
        raise QueryLimitError("The search took 5 s.")

    monkeypatch.setattr(api_search, "search_runs", fail)
    status, _, err = search("quokka", "--limit", 100)
    assert status == 2 and err == "The search took 5 s.\n"
