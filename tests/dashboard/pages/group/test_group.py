"""The group board: the responses to one prompt side by side, and the links to the next group of the query."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.common.group_links import UNSAFE_GROUP_NAME_PATTERN
from rolloutdeck.protocol import compute_prompt_key as key_of
from rollouts.models import Project, Run, Sample, Step
from rollouts.prompts import groups
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

TRAP = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>"
NAMES = ["7", "a/b", "..", "a//b", "?x=1#y", "%2e", "new\nline", "组 1", "<b>", "\u202eback", "-", "./.", "~" * 200]


def build_group(name: str, scores: list[float | None], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"ask {name}",
            "response": f"long {'x' * 700} {n}\n#### {n}",
            "score": score,
            "group": name,
            "index": n,
            **more,
        }
        for n, score in enumerate(scores)
    ]


def push_rows(run: Run, *rows: dict[str, Any], step: int = 1, **header: Any) -> None:
    index_file(run, lines(*rows), step, **header)
    run.refresh_from_db()


def get_page(client: Client, url: str, status: int = 200) -> str:
    answer = client.get(url)
    assert answer.status_code == status, url
    return answer.content.decode()


def find_link(text: str, key: str) -> str:
    """The URL of the link with this key; empty if there is none."""
    result = re.search(rf'<a [^>]*data-key="{key}"[^>]*>', text)
    return unescape(re.search(r'href="([^"]*)"', result.group())[1]) if result else ""  # type: ignore[index]


def test_a_group_without_a_name_is_titled_responses_to_one_prompt(run: Run, client: Client, owner: User) -> None:
    client.force_login(owner)
    push_rows(
        run, *build_group("7", [0.0, 1.0]), *({"prompt": "1+1?", "response": str(n), "score": n} for n in range(2))
    )
    named, unnamed = (get_page(client, f"/runs/{run.uid}/groups/1/{name}/") for name in ("7", key_of("1+1?")))
    assert "Responses to one prompt</h1>" in unnamed and key_of("1+1?")[:6] in unnamed
    assert 'Group<span class="mono">7</span></h1>' in collapse_spaces(named) and "Responses to one prompt" not in named


@pytest.mark.parametrize(("who", "status"), [("owner", 200), ("mate", 200), ("stranger", 404)])
def test_only_members_see_a_board(
    run: Run, client: Client, who: str, status: int, request: pytest.FixtureRequest
) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0]))
    client.force_login(request.getfixturevalue(who))
    get_page(client, f"/runs/{run.uid}/groups/1/7/", status)


def test_a_group_that_a_step_does_not_have_is_not_found(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0]))
    for url in ("1/8", "2/7", "all/7", "x/7", "1/-", "1/a%00b"):
        get_page(reader, f"/runs/{run.uid}/groups/{url}/", 404)


def test_responses_are_sorted_by_score_and_show_their_values(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [1.0, 0.25, None], ground_truth="204", truncated=True, advantages=[0.5]))
    text = get_page(reader, f"/runs/{run.uid}/groups/1/7/")
    assert re.findall(r">n=(\d)", text) == ["1", "0", "2"]
    for message in ("3 responses", 'expected <b class="mono">204', "TRUNC", "adv +0.50", "2 of 2 correct", "ask 7"):
        assert message in text, message
    assert "ZERO VARIANCE" not in text


def test_zero_variance_is_shown(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 0.0]))
    assert "ZERO VARIANCE" in get_page(reader, f"/runs/{run.uid}/groups/1/7/")


def test_nine_responses_fold_by_answer_and_eight_do_not(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("8", [0.0] * 8), *build_group("9", [0.0] * 9))
    assert 'class="fold"' not in get_page(reader, f"/runs/{run.uid}/groups/1/8/")
    assert get_page(reader, f"/runs/{run.uid}/groups/1/9/").count('class="fold"') == 9


def test_a_response_is_shown_in_full_when_the_url_says_so(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0]))
    pk = Sample.objects.get(score=1.0).pk
    board = f"/runs/{run.uid}/groups/1/7/"
    assert [get_page(reader, f"{board}?whole={full}").count("long xxx") for full in ("", pk[:8], "all", pk[:7])] == [
        0,
        1,
        2,
        0,
    ]


def test_next_and_previous_go_through_the_groups_of_the_query(run: Run, reader: Client) -> None:
    push_rows(
        run,
        *build_group("a", [0.0, 0.0]),
        *build_group("b", [0.1, 0.2]),
        *build_group("c", [0.5, 0.5]),
        *build_group("d", [1.0]),
    )
    board = f"/runs/{run.uid}/groups/1"
    text = get_page(reader, f"{board}/a/?q=is:zerovar")
    assert "group 1 of 2 in step 1" in text
    assert (find_link(text, "K"), find_link(text, "J")) == ("", f"{board}/c/?q=is:zerovar")
    text = get_page(reader, f"{board}/b/?sort=-score")
    assert (find_link(text, "K"), find_link(text, "J")) == (f"{board}/c/?sort=-score", f"{board}/a/?sort=-score")
    text = get_page(reader, f"{board}/d/?q=is:zerovar")
    assert (
        "this group is not in the query result (2 groups)" in text
        and find_link(text, "J") == f"{board}/a/?q=is:zerovar"
    )
    assert "(1 group)" in get_page(reader, f"{board}/a/?q=score=1")


def test_a_response_is_labelled_with_its_key_and_its_number_in_the_group(run: Run, reader: Client) -> None:
    """The link of key 1 leads to the lowest score, whichever number the trainer gave it."""
    push_rows(run, *build_group("7", [1.0, 0.0]))
    text = get_page(reader, f"/runs/{run.uid}/groups/1/7/")
    names = re.findall(r'<article class="board-column"[^>]*aria-label="([^"]*)"', text)
    assert names == ["Response 1, n=1", "Response 2, n=0"] and 'aria-label="Go to response 1"' in text


def test_an_invalid_query_is_reported_and_all_groups_can_be_visited(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("a", [0.0]), *build_group("b", [1.0]))
    text = get_page(reader, f"/runs/{run.uid}/groups/1/a/?q=score<")
    assert "error-line" in text and "group 1 of 2" in text


def test_the_table_and_the_sample_link_to_the_board_with_their_query(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0]))
    board = f"/runs/{run.uid}/groups/1/7/"
    text = get_page(reader, f"/runs/{run.uid}/steps/1/?q=score<2")
    assert text.count(f'href="{board}?q=score&lt;2" data-board') == 3, "two rows, and the sample beside them"
    sample = Sample.objects.first()
    assert sample and find_link(get_page(reader, f"/samples/{sample.pk}/"), "g") == board
    assert find_link(get_page(reader, board), "Esc").startswith(f"/runs/{run.uid}/steps/1/?sel=")


def test_an_evaluation_and_an_older_attempt_keep_their_own_boards(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 0.0]), attempt="one")
    push_rows(run, *build_group("7", [1.0, 1.0, 1.0]), attempt="two")
    push_rows(run, *build_group("7", [0.5] * 4), split="eval")
    sizes = {}
    for sample in Sample.objects.select_related("step").distinct():
        sizes[find_link(get_page(reader, f"/samples/{sample.pk}/"), "g")] = sample.step.samples
    assert len(sizes) == 3
    for url, size in sizes.items():
        assert f"{size} responses" in get_page(reader, url), url


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_any_name_can_be_opened(run: Run, reader: Client, name: str) -> None:
    push_rows(run, *build_group(name, [0.0, 1.0]), *build_group("other", [0.5, 0.6]))
    first = Sample.objects.get(score=0.0)
    url = find_link(get_page(reader, f"/samples/{first.pk}/"), "g")
    assert not UNSAFE_GROUP_NAME_PATTERN.search(url.partition("?")[0].rstrip("/").removeprefix("/")), url
    text = get_page(reader, url)
    assert "2 responses" in text and first.pk in text
    assert get_page(reader, url + ("&" if "?" in url else "?") + "whole=all").count("long xxx") == 2
    back = find_link(get_page(reader, find_link(text, "J")), "K")
    assert back == url


def test_hostile_text_of_a_model_is_escaped(run: Run, reader: Client) -> None:
    rows = build_group(TRAP, [0.0] * 9, prompt=TRAP, response=f"{TRAP}\n#### {TRAP}\u202e\x00", ground_truth=TRAP)
    push_rows(run, *rows, {**rows[0], "response": ""}, {**rows[0], "response": "\ud800 half"})
    sample = Sample.objects.exclude(tail="").first()
    assert sample
    text = get_page(reader, find_link(get_page(reader, f"/samples/{sample.pk}/"), "g"))
    assert not re.search(r"<img|<script(?! src=)|\u202e(?!</i>)", text)
    assert "The response is empty." in text


def test_a_board_of_many_takes_as_many_queries_as_one_of_few(
    run: Run, reader: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    push_rows(run, *build_group("a", [0.0, 1.0]), *build_group("b", [0.5] * 30))
    assert Step.objects.count() == 1
    for name in ("a", "b"):
        get_page(reader, f"/runs/{run.uid}/groups/1/{name}/")
        with django_assert_max_num_queries(17):
            get_page(reader, f"/runs/{run.uid}/groups/1/{name}/")


def test_correct_and_wrong_responses_can_be_filtered(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0, 1.0]))
    rendered = get_page(reader, f"/runs/{run.uid}/groups/1/7/")
    assert "Correct <b>2</b>" in rendered and "Wrong <b>1</b>" in rendered
    assert (collapse_spaces(rendered).count(">CORRECT<"), collapse_spaces(rendered).count(">WRONG<")) == (2, 1)
    wrong = get_page(reader, f"/runs/{run.uid}/groups/1/7/?only=wrong")
    assert wrong.count('class="board-column"') == 1 and "1 of 3 responses" in wrong
    assert "only=wrong&amp;whole=all" in wrong
    push_rows(run, *build_group("8", [0.0, 0.0]), step=2)
    assert "Wrong <b>" not in get_page(reader, f"/runs/{run.uid}/groups/2/8/")


def test_the_filter_all_includes_responses_without_a_verdict(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0, None]))
    board = get_page(reader, f"/runs/{run.uid}/groups/1/7/")
    assert "All <b>3" in board and "Correct <b>1" in board and "Wrong <b>1" in board


def test_missing_answers_are_counted_only_if_some_response_has_an_answer(run: Run, reader: Client) -> None:
    rows = [{"prompt": "1+1?", "response": word, "score": score, "group": "7"} for word, score in (("a", 0), ("b", 1))]
    push_rows(run, *rows)
    push_rows(run, *rows, {"prompt": "1+1?", "response": "#### 2", "score": 1, "group": "7"}, step=2)
    assert "without an answer" not in get_page(reader, f"/runs/{run.uid}/groups/1/7/")
    assert "<b>2</b>without an answer" in collapse_spaces(get_page(reader, f"/runs/{run.uid}/groups/2/7/"))


def test_the_common_start_of_all_responses_is_dimmed(run: Run, reader: Client) -> None:
    rows = [
        row | {"response": f"Let me think about this <b>first</b>.\n{row['response']}"}
        for row in build_group("7", [0.0, 1.0])
    ]
    push_rows(run, *rows)
    address = f"/runs/{run.uid}/groups/1/7/"
    dimmed = 'title="Common start of all responses">Let me think about this &lt;b&gt;first&lt;/b&gt;.'
    assert [
        get_page(reader, address + query).count(dimmed) for query in ("", "?whole=all", "?diff=1", '?whole=all&q="me"')
    ] == [0, 2, 0, 0]


def test_a_diff_shows_every_response_in_full(run: Run, reader: Client) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0]))
    rendered = get_page(reader, f"/runs/{run.uid}/groups/1/7/?diff=1")
    assert (
        "data-diff" in rendered
        and rendered.count("long xxx") == 2
        and find_link(rendered, "d") == f"/runs/{run.uid}/groups/1/7/?"
    )


def test_a_diff_of_many_responses_shows_only_some_in_full_and_the_best_of_them(
    run: Run, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_rows(run, *build_group("8", [0.0] * 11 + [1.0]), step=2)
    address = f"/runs/{run.uid}/groups/2/8/?diff=1"
    rendered = get_page(reader, address)
    assert rendered.count("long xxx") == 12 and find_link(rendered, "d") == f"/runs/{run.uid}/groups/2/8/?"
    monkeypatch.setattr(groups, "MAX_DIFF_CHARS", 2000)
    rendered = get_page(reader, address)
    assert rendered.count("long xxx") == 3 and rendered.count('class="text cut"') == 9
    best = Sample.objects.get(score=1.0).pk[:8]
    assert f'data-best="c-{best}"' in rendered and "long xxx" in rendered[rendered.index(f'id="c-{best}"') :]


def test_only_annotators_flag_a_response_on_the_board_or_add_it_to_a_finding(
    run: Run, client: Client, mate: User, project: Project
) -> None:
    push_rows(run, *build_group("7", [0.0, 1.0]))
    lowest = Sample.objects.get(score=0.0).pk
    client.force_login(mate)
    board = get_page(client, f"/runs/{run.uid}/groups/1/7/")
    assert (
        find_link(board, "f") == f"/samples/{lowest}/#flag-box"
        and find_link(board, "q") == f"/findings/add/?sample={lowest}"
    )
    assert board.count('data-key="Q"') == 2 and 'id="flag-here"' in board and 'data-key="u"' in board
    client.force_login(builders.member(project, "vera", "viewer"))
    viewer_page = get_page(client, f"/runs/{run.uid}/groups/1/7/")
    assert viewer_page.count('data-key="Q"') == 2
    assert not any(f'data-key="{key}"' in viewer_page for key in "fqu") and "flag-here" not in viewer_page
