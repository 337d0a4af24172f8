"""Code between backticks in our messages: pages show it as code."""

from __future__ import annotations

import re
from pathlib import Path

from django.contrib.auth.models import User
from django.test import Client
from django.utils.safestring import mark_safe

from dashboard.pages.common import render_code_spans
from rollouts.models import Run
from tests.rollouts.support.push import generation, index_file, lines


def test_the_text_between_backticks_is_shown_as_escaped_code() -> None:
    assert render_code_spans("use `a<b>` or `c`") == "use <code>a&lt;b&gt;</code> or <code>c</code>"
    assert render_code_spans("one ` alone") == "one ` alone"
    assert render_code_spans("`a` and ` alone") == "<code>a</code> and ` alone"
    assert render_code_spans("") == ""
    assert render_code_spans(mark_safe("<b>`</b>")) == "<b>`</b>"


def find_raw_backticks(page: str) -> list[str]:
    return re.findall(r"[^<>]*`[^<>]*", page.partition("<main")[2].partition("</main")[0])


def test_no_message_of_a_page_shows_raw_backticks(run: Run, client: Client, owner: User) -> None:
    index_file(run, lines(generation(score=1.0), generation(response="5", score=0.0)), 1)
    run.project.correct = "score>0.5"
    run.project.save()
    client.force_login(owner)
    step = f"/runs/{run.uid}/steps/1/"
    page = client.get(f"{step}?q=is:correct").content.decode()
    assert "uses the rule of math: <code>score&gt;0.5</code>." in page and not find_raw_backticks(page)
    for url in (f"{step}?q=scor<1", f"{step}?q=is:corect", "/?q=foo:bar", "/search/?project=math&q=is:corect"):
        page = client.get(url).content.decode()
        assert "<code>" in page and not find_raw_backticks(page), url
    page = client.post("/settings/math/tokens/", {"name": ""}, follow=True).content.decode()
    assert "“purpose” is required" in page and not find_raw_backticks(page)


def test_scripts_write_messages_in_one_way() -> None:
    """`writeMessage` and `showMessage` of ui.js show code; plain assignments of a server's message do not."""
    scripts = Path(__file__).parents[4].joinpath("static/js").rglob("*.js")
    direct = [
        path.name for path in scripts if re.search(r"textContent = [^;]*(error|result)\.message", path.read_text())
    ]
    assert direct == []
