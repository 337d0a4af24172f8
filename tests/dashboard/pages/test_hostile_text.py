"""Generations are hostile input: pages show whatever a model writes as visible, escaped text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.pages.common import formatting
from dashboard.pages.sample import view_modes
from rollouts import queues
from rollouts.labels import save_rubric
from rollouts.models import AttemptContext, Project, Run, Sample
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

ROOT = Path(__file__).parents[3]
TRAP = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7*7 }} {% now %} <!-- \" ' &amp;"


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, "<b>run</b>", uid="hostile")
    trap = generation(prompt=TRAP, response=TRAP, score=0.5, **{"<key>": TRAP, "data_source": TRAP})
    index_file(run, lines({**trap, "gts": TRAP}, generation(response="\ud800 half")))
    return run


def list_paths(run: Run) -> list[str]:
    sample = Sample.objects.filter(step__run=run, score=0.5)[0]
    return [
        "/",
        "/live/",
        f"/runs/{run.uid}/",
        f"/runs/{run.uid}/steps/1/?sort=-score",
        f"/runs/{run.uid}/steps/all/?q=%22%3Cscript%3E%22",
        f"/runs/{run.uid}/prompts/{sample.prompt_key}/",
        *(f"/samples/{sample.pk}/?view={view}" for view in ("raw", "math", "json")),
    ]


def test_no_text_of_a_model_becomes_an_element(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    for url in list_paths(run):
        page = client.get(url).content.decode()
        assert not re.search(r"<img|<script(?! src=)|<b>run", page), url


def test_templates_in_text_are_not_run(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    assert "{{ 7*7 }} {% now %}" in client.get(list_paths(run)[-3]).content.decode()


def test_no_page_has_inline_script_or_style(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    for url in [*list_paths(run), "/settings/", "/settings/math/", "/nowhere/"]:
        answer = client.get(url)
        page = answer.content.decode()
        assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=\"|javascript:", page), url
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]


def test_a_half_surrogate_is_shown_as_a_replacement(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    sample = Sample.objects.filter(step__run=run, score=1.0)[0]
    for view in ("raw", "math", "json"):
        assert client.get(f"/samples/{sample.pk}/?view={view}").status_code == 200


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\x00", "\x1b", "\x85"])
def test_a_character_that_hides_or_reverses_text_is_named(character: str) -> None:
    assert f'data-code="U+{ord(character):04X}"' in formatting.render_text(f"a{character}b")
    assert f'data-code="U+{ord(character):04X}"' in formatting.render_highlighted_text(f"a{character}b #### 1")


@pytest.mark.parametrize("kept", ["\u200d", "\u200c", "\n", "\t", "é", "مرحبا", "👩\u200d🔬"])
def test_ordinary_characters_stay_as_they_are(kept: str) -> None:
    assert formatting.render_text(kept) == kept


def test_the_answer_marker_is_shown_unchanged_in_every_view() -> None:
    written = "so\n#### 298\n"
    assert "#### 298" in formatting.render_highlighted_text(written)
    assert "#### 298" in view_modes.render_markdown(written)


def test_words_of_the_query_are_marked_in_escaped_text() -> None:
    assert formatting.render_highlighted_text("a <b> c", ["<B>"]) == 'a <mark class="hit">&lt;b&gt;</mark> c'


def test_markdown_never_loads_or_links_elsewhere() -> None:
    html = view_modes.render_markdown(
        "![x](http://e.example/i.png) [y](http://e.example) <http://e.example> <img src=x>"
    )
    assert "<img" not in html
    assert "<a" not in html


def test_notes_of_people_have_headings_and_safe_links() -> None:
    html = formatting.render_note("# Rules\n\n[docs](https://e.example/a) <http://e.example> [run](/runs/x/)")
    assert "<h3>Rules</h3>" in html
    assert html.count('rel="noopener noreferrer nofollow"') == html.count('target="_blank"') == 3
    assert 'href="https://e.example/a"' in html and 'href="/runs/x/"' in html
    trap = formatting.render_note("[a](javascript:alert(1)) [b](data:text/html,x) <b onclick=x> ![c](http://e.example)")
    assert "<img" not in trap and "<b" not in trap and trap.count("href") == 1  # the image is a link
    assert "<a" not in formatting.render_note("[docs](https://e.example/a)", has_links=False)


def test_markdown_keeps_math_brackets_for_the_page() -> None:
    assert r"\[ x^2 \]" in view_modes.render_markdown(r"\[ x^2 \]")


def test_a_generation_of_two_megabytes_is_complete_folded_and_marked_up_to_a_limit(
    project: Project, client: Client, mate: User
) -> None:
    run = builders.run(project)
    index_file(run, lines(generation(response="#### 1 and on\n" * 150_000)))
    client.force_login(mate)
    page = client.get(f"/runs/{run.uid}/steps/1/").content.decode()
    assert page.count("#### 1 and on") > 150_000 - 1
    assert page.count("<mark") == 1000
    assert "× 150,000" in page


def test_blocks_of_a_long_text_contain_the_whole_text() -> None:
    long = "one line\n" * 50_000 + "x" * 300_000
    blocks = list(formatting.split_into_blocks(long))
    assert "".join(blocks) == long
    assert all(formatting.BLOCK_CHARS <= len(block) <= 2 * formatting.BLOCK_CHARS for block in blocks[:-1])
    first = next(index for index, block in enumerate(blocks) if "x" in block)
    assert first > 1 and all(block.endswith("\n") for block in blocks[:first]), "lines are not cut"
    assert set("".join(blocks[first + 1 :])) == {"x"} and len(blocks) > first + 2, "a line of megabytes is cut"


REVERSED = "a\u202eb"  # the character reverses the text after it
TEMPLATE_PART = re.compile(r"\{[{%#].*?[}%#]\}", re.DOTALL)
# Places of a template that cannot have the element that `plain` makes of a control character.
TEXT_ONLY = re.compile(r"<[a-zA-Z][^<>]*>|<(title|option)\b.*?</\1>", re.DOTALL)
TITLE_BLOCK = re.compile(r"{% block title %}.*?{% endblock %}", re.DOTALL)


def test_templates_do_not_use_plain_where_no_element_is_allowed() -> None:
    wrong = []
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text()
        masked = TEMPLATE_PART.sub(lambda part: "x" * len(part[0]), text)
        places = [*TEXT_ONLY.finditer(masked), *TITLE_BLOCK.finditer(text)]
        wrong += [f"{path.name}: {text[place.start():place.end()]}" for place in places
                  if "|plain" in text[place.start():place.end()]]  # fmt: skip
    assert not wrong, "use |printable"


def test_names_do_not_reverse_the_text_around_them(project: Project, client: Client) -> None:
    lead = builders.member(project, "lena", "owner")
    client.force_login(lead)
    question = {"key": "good", "title": REVERSED, "kind": "choice", "required": True,
                "options": [{"key": "x", "title": REVERSED}, {"key": "y", "title": "other"}]}  # fmt: skip
    numeric = {"key": "cost", "title": REVERSED, "kind": "number"}
    save_rubric(project, lead, [question, numeric, {"key": "note", "title": REVERSED, "kind": "text"}], "")
    runs = [builders.run(project, REVERSED + uid, uid=uid) for uid in ("one", "two")]
    for run in runs:
        index_file(run, lines(generation(score=0.5), generation(score=0.1)), 1)
    facts = {"command": REVERSED, "folder": REVERSED, "python": "3.11"}
    AttemptContext.objects.create(attempt=runs[0].attempts.get(), facts=facts, patch=REVERSED)
    queue = queues.create_queue(project, lead, {"name": REVERSED, "runs": runs, "num_reviewers_per_item": 2})
    for person, value in ((lead, "x"), (builders.member(project, "ann", "annotator"), "y")):
        queues.submit_answers(queue.items.get(position=0), person, {"good": {"value": value}})
    sample = runs[0].steps.get().rows.first()
    assert sample
    path = f"/queues/{queue.pk}/"
    for url in (
        "/", "/queues/", "/queues/new/?run=one", path, f"{path}review/", f"{path}agreement/", "/runs/one/",
        "/runs/one/steps/1/", "/runs/one/timeline/", "/runs/one/rescores/", "/runs/one/reward-check/?against=two",
        "/runs/one/context/?against=two", "/export/?run=one", "/review/?run=one", "/pins/", "/live/",
        f"/samples/{sample.pk}/", f"/samples/{sample.pk}/labels/", "/compare/", "/compare/?of=one@1,two@1&split=train",
        f"/runs/one/prompts/{sample.prompt_key}/",
    ):  # fmt: skip
        response = client.get(url, follow=True)
        assert response.status_code == 200, url
        page = re.sub(r'<i class="acting"[^>]*>\u202e</i>|\svalue="[^"]*"', "", response.content.decode())
        assert not re.findall(r".*\u202e.*", page), url
