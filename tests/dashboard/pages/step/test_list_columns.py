"""Columns of the list: reward parts, expected ≠ got, the text around the hit, the end of a response."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.pages.common.formatting import find_direction, render_text_end
from dashboard.pages.step import reward_parts
from dashboard.pages.step.reward_parts import choose_parts
from rollouts.models import Run
from rollouts.query import find_samples
from tests.rollouts.support.push import index_file, lines

pytestmark = pytest.mark.django_db


def build_row(n: int, **more: Any) -> dict[str, Any]:
    text = f"We count {n} <b>books</b>, so the answer is one of these.\n#### {n + 3}"
    rewards = {"acc": 1.0, "format": n / 10, "same": float(n), "len,gth": 900.0 + n, "b": -n, "c": n % 2, "d": n % 3}
    values = {"prompt": f"q{n}", "group": f"g{n}", "response": text, "ground_truth": str(n), "score": float(n)}
    return {**values, "rewards": rewards, **more}


@pytest.fixture
def get_step_page(run: Run, admin_client: Client) -> Any:
    index_file(run, lines(*(build_row(n) for n in range(1, 8))), format="native")
    return lambda q="": admin_client.get(f"/runs/{run.uid}/steps/1/?{q}").content.decode()


def test_the_parts_that_vary_are_columns(get_step_page: Any, run: Run) -> None:
    html = get_step_page()
    heads = [name for name in ("acc", "format", "same", "b", "c", "d") if f"sort=part:{name}" in html]
    assert heads == ["format", "b", "c", "d"]
    assert html.count('class="num c-part"') == 4 + 7 * 4
    assert get_step_page("parts=acc").count('class="num c-part"') == 8
    assert get_step_page("parts=-").count('class="num c-part"') == 0
    assert get_step_page("parts=unknown").count('class="num c-part"') == 0


def test_parts_that_repeat_the_score_or_are_lengths_come_last_or_never() -> None:
    parts = choose_parts([({"long": 500.0 + n, "score": n, "x": n, "const": 1.0, "gone": None}, n) for n in (1.0, 2.0)])
    assert (parts.names, parts.default) == (("long", "score", "x", "const"), ("long",))
    rows = [({"long": 500.0 + n, "a": -n, "b": 2 * n}, n) for n in (1.0, 2.0)]
    assert choose_parts(rows).default == ("a", "b", "long")
    assert choose_parts([]).default == choose_parts([(None, 1.0)]).default == ()


def test_parts_are_found_although_the_first_samples_have_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [{"prompt": f"plain {n}", "response": "x", "score": 0.0} for n in range(4)]
    index_file(run, lines(*plain, *(build_row(n) for n in range(1, 4))), format="native")
    monkeypatch.setattr(reward_parts, "MAX_READ_SAMPLES", 2)
    assert "format" in reward_parts.find_reward_parts(find_samples(run, step=1).samples).names


def test_a_list_is_sorted_by_a_part_with_unknown_values_last(get_step_page: Any, run: Run) -> None:
    index_file(
        run,
        lines(build_row(99, rewards={"acc": 1.0}), build_row(98, rewards={"format": float("nan")})),
        1,
        format="native",
        source="other",
    )
    for ordering, expected in (("part:format", [1, 2, 3]), ("-part:format", [7, 6, 5])):
        found = list(find_samples(run, step=1, ordering=ordering).samples)
        assert [int(sample.expected) for sample in found[:3]] == expected
        assert {sample.expected for sample in found[-2:]} == {"98", "99"}
    assert [sample.expected for sample in find_samples(run, step=1, ordering='part:no"such').samples]
    assert "answer is one" in get_step_page("sort=-part:format")


def test_a_mismatch_shows_what_was_expected_and_got(get_step_page: Any) -> None:
    html = get_step_page()
    assert '5 ≠ <b class="got">8</b>' in html and "expected ≠ got" in html and html.count("MISMATCH") >= 7


def test_a_query_for_text_shows_the_text_around_the_hit(get_step_page: Any) -> None:
    html = get_step_page('q="one of"')
    assert html.count('<mark class="hit">one of</mark> these') >= 7
    assert "&lt;b&gt;books&lt;/b&gt;" in html and "<b>books" not in html
    assert "response (around the hit)" in html
    assert '<mark class="hit">5</mark>' in get_step_page("q=/5/")
    assert "response (tail)" in get_step_page("q=score>1")


@pytest.mark.parametrize(
    ("text", "direction"), [("abc", "ltr"), ("12 كتب abc", "rtl"), ("«שלום»", "rtl"), ("… 你好", "ltr"), ("", "ltr")]
)
def test_the_end_of_a_text_has_its_direction(text: str, direction: str) -> None:
    assert find_direction(text) == direction
    assert render_text_end(text, is_cut=False) == f'<bdi dir="{direction}">{text}</bdi>'
    assert "… " in render_text_end("abc", is_cut=True)
