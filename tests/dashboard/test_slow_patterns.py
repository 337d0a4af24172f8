"""The worst regular expressions at every endpoint that takes a query: each answers within the time limit."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.messages import get_messages
from django.http import HttpResponse
from django.test import Client

from rollouts.models import Run
from rollouts.query.body_scan import scanner
from tests.rollouts.support.push import generation, index_file, lines

SECONDS = 0.2  # the limit of a search here
SLACK = 10.0  # for the rest of the request, on a busy machine. Without a limit, RUNAWAY takes minutes
SAMPLES = 100
WORDS = random.Random(1).choices(
    ["the", "value", "of", "x", "is", "y", "and", "so", "we", "have", "six", "axes"], k=2000
)
RUNAWAY = r"(.{1,500}x){2}[^x\w\s]"  # reads less than 1 MB per second
PATTERNS = {
    "runaway": RUNAWAY,
    "repeated repeats": r"(.{1,50}x){20}Q",
    "nested stars": r"((\w+\s?)*)*!",
    "many stars": ".*" * 30 + "Q",
    "large classes": r"(\p{L}|\p{N}){900}Q",
    "refused: too large": r"((.{1,100}){1,100}){1,100}",
    "refused: backreference": r"(a|b)+\1",
}

Ask = Callable[[Client, Run, str], HttpResponse]


def build_get(url: str, **params: str) -> Ask:
    return lambda client, run, q: client.get(
        f"{url.format(run=run.uid)}?{urlencode({**insert_ids(params, run), 'q': q})}"
    )


def build_post(url: str, **values: str) -> Ask:
    return lambda client, run, q: client.post(url.format(run=run.uid), {**insert_ids(values, run), "q": q})


def insert_ids(values: dict[str, str], run: Run) -> dict[str, str]:
    return {name: value.format(run=run.uid, project=run.project.slug) for name, value in values.items()}


ENDPOINTS: dict[str, Ask] = {
    "page of a step": build_get("/runs/{run}/steps/1/"),
    "page of all steps": build_get("/runs/{run}/steps/all/"),
    "page of the search": build_get("/search/", project="{project}"),
    "page of the runs": build_get("/"),
    "review": build_get("/review/", run="{run}"),
    "bulk flags": build_post("/runs/{run}/flags/", all="1", split="train", step="1"),
    "palette": build_get("/go/"),
    "API samples": build_get("/api/v1/samples/", run="{run}"),
    "API exports": build_get("/api/v1/exports/samples/", run="{run}"),
    "API search": build_get("/api/v1/search/", project="{project}"),
    "API runs": build_get("/api/v1/runs/"),
    "API query curve": build_get("/api/v1/runs/{run}/query-curve/"),
    "API query curve, among": lambda client, run, q: client.get(
        f"/api/v1/runs/{run.uid}/query-curve/?{urlencode({'q': 'score:1', 'among': q})}"
    ),
    "API completions": build_get("/api/v1/completions/", run="{run}"),
}
STOPPED = re.compile(r"which is the limit|other searches still run")
WITHOUT_TEXT = {"palette", "API completions"}  # they search no text
SHORT_TEXTS = {"page of the runs", "API runs"}  # names and tags: only a process that starts takes longer than the limit


@pytest.fixture
def long_run(run: Run) -> Run:
    text = " ".join(["the", "value", *WORDS])
    index_file(run, lines(*(generation(f"p{number}", f"{text} {number}") for number in range(SAMPLES))))
    return run


@pytest.fixture(autouse=True)
def limit_searches(settings: Any) -> Iterator[None]:
    settings.MAX_QUERY_SECONDS = settings.MAX_WORKER_QUERY_SECONDS = 60
    yield
    while scanner.idle:
        scanner.idle.pop().stop()


@pytest.mark.one_database
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # as the test client does
def test_no_pattern_takes_more_than_the_time_limit_at_any_endpoint(
    reader: Client, long_run: Run, settings: Any
) -> None:
    assert reader.get(f"/runs/{long_run.uid}/steps/1/?q=/value/").status_code == 200  # a process has started
    settings.MAX_QUERY_SECONDS = settings.MAX_WORKER_QUERY_SECONDS = SECONDS
    problems, stopped = [], set()
    for endpoint, ask in ENDPOINTS.items():
        for name in PATTERNS if endpoint == "API samples" else ["runaway"]:
            start = time.monotonic()
            response = ask(reader, long_run, f"/{PATTERNS[name]}/")
            body = read_body(response)
            seconds = time.monotonic() - start
            if response.status_code >= 500 or seconds > SECONDS + SLACK:
                problems.append((endpoint, name, response.status_code, round(seconds, 1)))
            if response.status_code in (422, 429) or STOPPED.search(body):
                stopped.add((endpoint, name))
    assert problems == []
    runaways = {endpoint for endpoint, name in stopped if name == "runaway"}
    assert {*ENDPOINTS} - runaways - SHORT_TEXTS == WITHOUT_TEXT


def read_body(response: HttpResponse) -> str:
    if response.status_code == 303:  # the message is on the next page
        return " ".join(str(message) for message in get_messages(response.wsgi_request))
    content = b"".join(response) if response.streaming else response.content
    return content.decode("utf-8", "replace")
