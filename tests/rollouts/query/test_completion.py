"""Completions of the query box for indexed samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.models import Project, Run
from rollouts.query import completion, search
from rollouts.query.ast import InvalidQueryError
from rollouts.query.body_scan.newest_keys import MAX_KEY_FILES
from rollouts.query.completion import context
from rollouts.query.parser import parse_query
from rollouts.rescores import create_rescore, save_results
from rollouts.samples import RescoreResult
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

ROWS = [
    generation(response="a #### 1", score=1.0, acc=True, lang="en", data_source="openai/gsm8k", group="1"),
    generation(response="b", score=0.0, acc=False, lang="zh", data_source="MATH level 5", group="1"),
    generation(response="c c", score=-0.5, acc=False, lang="zh", data_source="openai/gsm8k", **{"a key": 3}),
    generation(response="", score=-0.5, lang='say "x"', n_tools=2),
]


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    index_file(run, lines(*ROWS), 1)
    return run


def list_choices(run: Run, q: str, at: int | None = None, **options: Any) -> dict[str, int | None]:
    result = completion.complete_query(run, q, at, **{"step": 1, **options})
    return {choice.text: choice.count for choice in result.choices}


def list_details(run: Run, q: str) -> dict[str, str]:
    return {choice.text: choice.detail for choice in completion.complete_query(run, q, step=1).choices}


def test_an_empty_box_offers_the_numbers_that_were_recorded_with_their_range(run: Run) -> None:
    result = list_details(run, "")
    assert result["score"] == "reward of the response, −0.5 to 1"
    assert result["len"].endswith("0 to 8")
    assert "tokens" not in result and "adv" not in result


def test_values_of_very_many_samples_are_read_from_the_newest_and_not_counted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_file(
        run, lines(*(generation(f"1+{n}?", "new", score=n / 9, data_source="new", lang="en") for n in range(10))), 2
    )
    everywhere = {"step": None, "split": "train"}
    assert list_choices(run, "source:", **everywhere) == {
        "source:new": 10,
        "source:openai/gsm8k": 2,
        'source:"MATH level 5"': 1,
    }
    monkeypatch.setattr(context, "MAX_COUNTED_SAMPLES", 13)
    monkeypatch.setattr(context, "MAX_SCANNED_SAMPLES", 10)
    assert list_choices(run, "source:", **everywhere) == {"source:new": None}
    assert list_choices(run, "lang=", **everywhere) == {"lang=en": None}
    assert list_choices(run, "score<", **everywhere) == {
        "score<0": None,
        "score<0.444444": None,
        "score<0.888889": None,
    }


def test_keys_of_the_run_are_offered_with_their_type(run: Run) -> None:
    assert list_details(run, "lan")["lang"] == "logged text, distinct values: 3"
    assert list_details(run, "ac") == {"acc": "logged number, 0 to 1"}
    assert list_details(run, "n_t") == {"n_tools": "logged number, 2"}
    assert list(list_details(run, "key")) == ['extra."a key"']


def test_a_property_is_found_without_its_prefix(run: Run) -> None:
    assert list(list_details(run, "trunc")) == ["is:truncated", "is:trunc?"]


def test_a_property_is_offered_with_the_number_of_samples_that_match(run: Run) -> None:
    assert list_choices(run, "is:em") == {"is:empty": 1}
    assert list_choices(run, "score=1 is:em") == {"is:empty": 0}
    assert list_choices(run, "no:ma") == {"no:marker": 0}
    assert next(iter(list_choices(run, "is:"))) == "is:correct"


def test_terms_after_the_caret_limit_the_count(run: Run) -> None:
    assert list_choices(run, "is:em score=1", 5) == {"is:empty": 0}


def test_values_are_offered_with_the_number_of_samples_that_match(run: Run) -> None:
    assert list_choices(run, "score<") == {"score<-0.5": 0, "score<0": 2, "score<1": 3}
    assert list_choices(run, "score") == {"score=-0.5": 2, "score=0": 1, "score=1": 1}
    assert list_choices(run, "source:gs") == {"source:openai/gsm8k": 2}
    assert list_choices(run, "source:math") == {'source:"MATH level 5"': 1}
    assert list_choices(run, "lang=") == {"lang=zh": 2, "lang=en": 1, 'lang="say \\"x\\""': 1}


def test_values_of_a_key_are_counted_only_if_the_query_has_no_other_term(run: Run) -> None:
    assert list_choices(run, "score=1 lang=") == {"lang=zh": None, "lang=en": None, 'lang="say \\"x\\""': None}
    assert list_choices(run, "lang= score=1", 5)["lang=zh"] is None
    assert list_choices(run, "lang= ((", 5)["lang=zh"] is None


def test_values_of_a_key_are_not_counted_if_older_files_were_not_read(run: Run) -> None:
    for step in range(2, 2 + MAX_KEY_FILES):
        index_file(run, lines(generation(lang="zh")), step)
    assert list_choices(run, "lang=", step=None)["lang=zh"] is None
    assert list_choices(run, "lang=", step=2) == {"lang=zh": 1}


def test_values_that_two_dumps_have_for_the_same_samples_are_not_counted_twice(run: Run) -> None:
    index_file(run, lines(*({**row, "late": 1} for row in ROWS)), source="again.jsonl")
    assert search.find_samples(run, step=1, q="lang=zh").total == 2
    assert list_choices(run, "lang=")["lang=zh"] is None


def test_full_width_signs_are_completed_like_ascii_signs(run: Run) -> None:
    assert list_choices(run, "is：em") == {"is:empty": 1}
    assert list_choices(run, "score＜") == list_choices(run, "score<")


def test_a_negated_term_is_completed_after_its_sign(run: Run) -> None:
    result = completion.complete_query(run, "score=1 -is:em", step=1)
    assert (result.start, result.end) == (9, 14)


def test_nothing_is_offered_inside_quotes(run: Run) -> None:
    assert list_choices(run, '"sco') == list_choices(run, '"a b sc') == {}


def test_many_values_are_offered_as_ranges(run: Run) -> None:
    index_file(run, lines(*(generation(response="x" * n, score=n / 40) for n in range(41))), 2)
    assert list_choices(run, "len", step=2) == {
        "len<4": 4, "len<20": 20, "len<36": 36, "len>=4": 37, "len>=20": 21, "len>=36": 5,
    }  # fmt: skip
    assert list_choices(run, "len:", step=2) == list_choices(run, "len", step=2)


def test_numbers_are_offered_with_the_digits_that_a_search_needs(run: Run) -> None:
    costs = (1234567, 1234567, 3.3333333, 0.1, float(np.float32(0.1)))
    rows = [generation(f"{n}?", "x", score=1234567.25, cost=cost) for n, cost in enumerate(costs)]
    index_file(run, lines(*rows), 2)
    assert list_choices(run, "score=", step=2) == {"score=1234567": 5}
    choices = list_choices(run, "cost=", step=2)
    assert choices == {"cost=1234567": 2, "cost=3.333333": 1, "cost=0.1": 2}
    assert {text: search.find_samples(run, step=2, q=text).total for text in choices} == choices


def test_a_name_that_is_a_rescore_of_one_run_and_a_key_of_another_is_offered_once(
    run: Run, project: Project, owner: User
) -> None:
    create_rescore(run, owner, name="lucky", kind="function", source="f", digest="1")
    other = builders.run(project, "other")
    index_file(other, lines(generation(lucky=7)), 1)
    (choice,) = completion.complete_query_of_runs([run, other], "luck").choices
    assert (choice.text, choice.detail) == ("lucky", "logged value")


@pytest.mark.parametrize("name", ["correct", "id", "a--b"])
def test_a_rescore_may_have_the_name_of_a_column(run: Run, owner: User, name: str) -> None:
    rescore, _created = create_rescore(run, owner, name=name, kind="function", source="f", digest="1")
    first = search.find_samples(run, q="score=1").samples.get()
    save_results(rescore, {first.pk: RescoreResult(0.25)})
    assert list_choices(run, f"{name}=") == {f"{name}=0.25": 1}
    assert list_choices(run, f"{name}>=")


def test_every_choice_can_be_searched_and_finds_the_offered_count(run: Run) -> None:
    for q in ("is:", "no:", "score<", "score>=", "len", "source:", "group:", "lang=", "acc=", "split:", "n_tools="):
        for text, count in list_choices(run, q).items():
            result = search.find_samples(run, step=1, q=text).total
            assert count is None or result == count, (text, result, count)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet='score<>=:is -("“「/0.\\é余', max_size=12), st.integers(-2, 14))
def test_any_text_is_completed_with_terms_that_can_be_read(run: Run, q: str, at: int) -> None:
    result = completion.complete_query(run, q, at, step=1)
    assert 0 <= result.start <= result.end <= len(q)
    for choice in result.choices:
        if choice.whole:
            try:
                parse_query(choice.text)
            except InvalidQueryError as error:
                raise AssertionError(choice) from error
