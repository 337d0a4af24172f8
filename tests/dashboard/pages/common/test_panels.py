"""Panels that a live update requests at once (`X-Panels`)."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from dashboard.pages.common import panels
from rollouts.models import Project, Run
from tests.dashboard.pages.test_pages import build_generations, build_two_steps
from tests.rollouts.support.push import index_file, lines

LIVE_PANEL = re.compile(r'<\w+(?=[^>]*\bdata-live\b)(?![^>]*\b(?:data-url|data-alone)\b)[^>]*\bid="([\w-]+)"')
PAGES = ("", "steps/latest/", "steps/all/", "timeline/", "groups/2/1/", "context/")
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')
HTMX = {"HX-Request": "true"}


@pytest.fixture
def run(project: Project) -> Run:
    return build_two_steps(project)


@pytest.mark.parametrize("path", PAGES)
def test_panels_requested_together_equal_panels_requested_alone(reader: Client, run: Run, path: str) -> None:
    url = f"/runs/{run.uid}/{path}"
    ids = LIVE_PANEL.findall(reader.get(url).content.decode())
    assert len(ids) > 1, url
    together = reader.get(url, headers=HTMX | {"HX-Target": ids[0], "X-Panels": " ".join(ids)})
    shown = {name: TOKEN.sub("", html) for name, html in together.json().items()}
    separate = {name: reader.get(url, headers=HTMX | {"HX-Target": name}).content.decode() for name in ids}
    assert shown == {name: TOKEN.sub("", html) for name, html in separate.items()}


def test_unchanged_panels_are_not_sent_again(reader: Client, run: Run) -> None:
    headers = HTMX | {"HX-Target": "alive", "X-Panels": "alive strip"}
    first = reader.get(f"/runs/{run.uid}/", headers=headers)
    stored = {"If-None-Match": first.headers["ETag"]}
    assert reader.get(f"/runs/{run.uid}/", headers=headers | stored).status_code == 304
    others = headers | {"X-Panels": "alive strip notices"}
    assert reader.get(f"/runs/{run.uid}/", headers=others | stored).status_code == 200
    index_file(run, lines(*build_generations(3)), 3)
    assert reader.get(f"/runs/{run.uid}/", headers=headers | stored).status_code == 200


def test_a_panel_with_more_than_content_is_left_out(reader: Client, project: Project, run: Run) -> None:
    """The page of a run without samples is loaded again when the first ones have arrived: a header says so."""
    url, headers = f"/runs/{run.uid}/steps/latest/", HTMX | {"HX-Target": "empty", "X-Panels": "empty alive unknown"}
    assert reader.get(url, headers=headers).json().keys() == {"alive"}
    assert reader.get(url, headers=HTMX | {"HX-Target": "empty"}).headers["HX-Refresh"] == "true"


def test_a_panel_that_is_named_twice_is_rendered_once(
    reader: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    original = panels.render_with_deferred
    monkeypatch.setattr(
        panels, "render_with_deferred", lambda template, *rest: rendered.append(template) or original(template, *rest)
    )
    headers = HTMX | {"HX-Target": "alive", "X-Panels": "alive strip alive strip alive"}
    assert reader.get(f"/runs/{run.uid}/", headers=headers).json().keys() == {"alive", "strip"}
    assert len(rendered) == 2


def test_the_header_for_several_panels_is_ignored_without_htmx(reader: Client, run: Run) -> None:
    answer = reader.get(f"/runs/{run.uid}/", headers={"X-Panels": "alive strip"})
    assert answer.headers["Content-Type"].startswith("text/html")
