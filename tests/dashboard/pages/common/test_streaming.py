"""Streaming: the page of a very long text starts to arrive before the text is rendered, and has the same content."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from dashboard.pages.common import panels
from dashboard.pages.sample import related, repetition
from rollouts.models import Run, Sample
from tests.dashboard.support.asgi_server import Site
from tests.rollouts.support.push import generation, index_file, lines

LINES = "".join(f"{at}. so the number é{at} & <b>more</b>\n" for at in range(9000))
LOOP = "Wait, let me check again.\n" * 40


@pytest.fixture
def sample(site: Site, run: Run) -> Sample:
    index_file(run, lines(generation("What is it?", LINES + LOOP + LINES, 1.0)), format="verl-jsonl")
    return Sample.objects.get(step__run=run)


@contextmanager
def open_response(site: Site, client: Client, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    """The response to this client's session over real HTTP, of which nothing is read yet."""
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    link = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    link.request("GET", path, headers={"Cookie": cookie, **headers})
    try:
        yield link.getresponse()
    finally:
        link.close()


def read_page_in_two_parts(answer: http.client.HTTPResponse, until: bytes, seen: threading.Event) -> str:
    """Returns the whole page, and sets `seen` once the page has arrived up to `until`."""
    head = b""
    while until not in head and (piece := answer.read1(65536)):
        head += piece
    seen.set()
    return (head + answer.read()).decode()


def get_response_html(page: str) -> str:
    return page.partition('class="text response')[2].partition("</section>")[0]


def test_the_page_up_to_a_long_text_arrives_before_the_text_is_rendered(
    site: Site, sample: Sample, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    seen, waits, find_repetitions = threading.Event(), [], repetition.find_repetitions

    def find_after_wait(text: str) -> list[repetition.Repetition]:
        if len(text) > panels.MIN_STREAMED_CHARS:
            waits.append(seen.wait(20))
        return find_repetitions(text)

    monkeypatch.setattr(repetition, "find_repetitions", find_after_wait)
    with open_response(site, client, f"/samples/{sample.pk}/") as answer:
        page = read_page_in_two_parts(answer, b'class="text response', seen)
    assert waits == [True]
    assert page.endswith("</html>\n")
    full = client.get(f"/samples/{sample.pk}/").content.decode()
    assert get_response_html(page) == get_response_html(full)
    assert f"{8999}. so the number é{8999} &amp; &lt;b&gt;more" in get_response_html(page)


def test_a_page_whose_text_cannot_be_rendered_says_so_and_is_complete(
    site: Site, sample: Sample, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    find_repetitions = repetition.find_repetitions
    limit = panels.MIN_STREAMED_CHARS
    monkeypatch.setattr(
        repetition, "find_repetitions", lambda text: find_repetitions(text) if len(text) <= limit else 1 / 0
    )
    with open_response(site, client, f"/samples/{sample.pk}/") as answer:
        page = answer.read().decode()
    assert "Could not render the rest of this page" in page
    assert page.endswith("</html>\n")


def test_a_long_sample_without_its_body_says_so_and_shows_it_when_it_is_back(
    site: Site, sample: Sample, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    with monkeypatch.context() as patch:
        patch.setattr(related, "load_bodies", lambda samples: {})
        with open_response(site, client, f"/samples/{sample.pk}/") as answer:
            assert answer.status == 200 and "The text of this sample is not available" in answer.read().decode()
            etag = answer.headers["ETag"] or ""
    with open_response(site, client, f"/samples/{sample.pk}/", **{"If-None-Match": etag}) as answer:
        assert "8999. so the number" in answer.read().decode()


@pytest.mark.parametrize("extra", [{}, {"HX-Request": "true", "HX-Target": "sample"}], ids=["page", "pane"])
def test_a_long_text_is_complete_and_in_the_language_of_the_reader(
    site: Site, sample: Sample, client: Client, mate: User, extra: dict[str, Any]
) -> None:
    client.force_login(mate)
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "zh-hans"
    with open_response(site, client, f"/samples/{sample.pk}/", **extra) as answer:
        page = answer.read().decode()
    assert '<span class="show">展开</span>' in page and 'aria-label="回答"' in page
    assert get_response_html(page).count("8999. so the number") == 2
    assert panels.DEFERRED_MARKER not in page


def test_an_unchanged_page_is_answered_with_304(site: Site, run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(generation("What is it?", LOOP, 1.0)), format="verl-jsonl")
    short = Sample.objects.get(step__run=run)
    client.force_login(mate)
    client.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32
    with open_response(site, client, f"/samples/{short.pk}/") as answer:
        etag = str(answer.headers["ETag"])
    with open_response(site, client, f"/samples/{short.pk}/", **{"If-None-Match": etag}) as answer:
        assert answer.status == 304
