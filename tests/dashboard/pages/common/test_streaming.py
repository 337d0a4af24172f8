"""A page with a very long text begins to arrive before the text is rendered, and is the same page."""

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
    """The answer to this client's session over real HTTP, of which nothing is read yet."""
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    link = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    link.request("GET", path, headers={"Cookie": cookie, **headers})
    try:
        yield link.getresponse()
    finally:
        link.close()


def read_in_two(answer: http.client.HTTPResponse, until: bytes, seen: threading.Event) -> str:
    """The whole page; `seen` is set once it has come as far as `until`."""
    head = b""
    while until not in head and (piece := answer.read1(65536)):
        head += piece
    seen.set()
    return (head + answer.read()).decode()


def text_of(page: str) -> str:
    return page.partition('class="text response')[2].partition("</section>")[0]


def test_the_page_up_to_a_long_text_arrives_before_the_text_is_drawn(
    site: Site, sample: Sample, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    seen, waited, folds = threading.Event(), [], repetition.find_repetitions

    def when_seen(text: str) -> list[repetition.Repetition]:
        if len(text) > panels.MIN_STREAMED_CHARS:
            waited.append(seen.wait(20))
        return folds(text)

    monkeypatch.setattr(repetition, "find_repetitions", when_seen)
    with open_response(site, client, f"/samples/{sample.pk}/") as answer:
        page = read_in_two(answer, b'class="text response', seen)
    assert waited == [True]
    assert page.endswith("</html>\n")
    full = client.get(f"/samples/{sample.pk}/").content.decode()
    assert text_of(page) == text_of(full)
    assert f"{8999}. so the number é{8999} &amp; &lt;b&gt;more" in text_of(page)


def test_a_page_whose_text_cannot_be_drawn_says_so_and_keeps_its_frame(
    site: Site, sample: Sample, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    folds = repetition.find_repetitions
    limit = panels.MIN_STREAMED_CHARS
    monkeypatch.setattr(repetition, "find_repetitions", lambda text: folds(text) if len(text) <= limit else 1 / 0)
    with open_response(site, client, f"/samples/{sample.pk}/") as answer:
        page = answer.read().decode()
    assert "Could not render the rest of this page" in page
    assert page.endswith("</html>\n")


def test_a_long_sample_whose_body_is_gone_says_so_and_shows_once_it_is_back(
    site: Site, sample: Sample, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    with monkeypatch.context() as gone:
        gone.setattr(related, "load_bodies", lambda samples: {})
        with open_response(site, client, f"/samples/{sample.pk}/") as answer:
            assert answer.status == 200 and "The text of this sample is not available" in answer.read().decode()
            mark = answer.headers["ETag"] or ""
    with open_response(site, client, f"/samples/{sample.pk}/", **{"If-None-Match": mark}) as answer:
        assert "8999. so the number" in answer.read().decode()


@pytest.mark.parametrize("extra", [{}, {"HX-Request": "true", "HX-Target": "sample"}], ids=["page", "pane"])
def test_a_long_text_is_whole_and_in_the_readers_language(
    site: Site, sample: Sample, client: Client, mate: User, extra: dict[str, Any]
) -> None:
    client.force_login(mate)
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "zh-hans"
    with open_response(site, client, f"/samples/{sample.pk}/", **extra) as answer:
        page = answer.read().decode()
    assert '<span class="show">展开</span>' in page and 'aria-label="回答"' in page
    assert text_of(page).count("8999. so the number") == 2
    assert panels.DEFERRED_MARKER not in page


def test_a_page_that_did_not_change_is_not_drawn_again(site: Site, run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(generation("What is it?", LOOP, 1.0)), format="verl-jsonl")
    short = Sample.objects.get(step__run=run)
    client.force_login(mate)
    with open_response(site, client, f"/samples/{short.pk}/") as answer:
        mark = str(answer.headers["ETag"])
    with open_response(site, client, f"/samples/{short.pk}/", **{"If-None-Match": mark}) as answer:
        assert answer.status == 304
