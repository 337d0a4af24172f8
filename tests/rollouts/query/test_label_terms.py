"""Queries about labels: names, values, authors, sources, disagreement."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.errors import InvalidInputError
from rollouts.labels import Answer, save_rubric, store_labels, withdraw_label
from rollouts.models import Label, Project, Run
from rollouts.query import complete_query, find_samples, is_changeable_term, parse_correctness_rule, parse_query
from tests.rollouts.flags.test_bulk import index_two_steps, list_sample_ids
from tests.rollouts.labels.test_rubric import ROWS
from tests.support import builders

MATCHES = {
    "label:correct": "ab",
    "label:correct,quality": "abd",
    "-label:correct": "cdef",
    "label.correct=no": "b",
    "label.correct=true": "ab",
    "label.correct:no": "b",
    "label.correct!=yes": "",
    "label.quality!=4": "d",
    "label.errors=sum": "b",
    "label.errors=su": "",
    "label.errors:logic,sum": "b",
    "label.quality=4": "a",
    "label.quality>2": "a",
    "label.quality>=2": "ad",
    "label.quality：2..3": "d",
    "label.quality:..2": "d",
    "label.quality=2..4": "ad",
    "label.quality!=2..3": "a",
    "label.correct=yes,no": "ab",
    "label.correct!=yes,no": "",
    "label.quality!=1,2": "a",
    "label.quality:1,4": "a",
    "label.cost<20%": "",
    "label.cost<=0.25": "b",
    "label.correct>0": "ab",
    "label.note:答案": "a",
    "label.note:guessed": "a",
    "label.note=guessed": "",
    'label."note"="Guessed the 答案"': "a",
    "label.review=ok": "c",
    "label.flag.other=bad": "c",
    "label:flag.other": "c",
    "label:flag": "",
    "author:mina": "abcd",
    "author:price": "b",
    "author:nobody": "",
    "label-source:code": "b",
    "label-source:human author:mina": "abcd",
    "is:labelled": "abcd",
    "no:label": "ef",
    "is:disagreed": "bc",
    "score>=0 -is:disagreed is:labelled": "ad",
    "label.correct=yes response or label.quality=2": "d",
}


@pytest.fixture
def run(project: Project, owner: User, mate: User) -> Run:
    """Six samples: 0 to 3 have labels, 4 has only withdrawn ones, 5 has none."""
    save_rubric(project, owner, ROWS)
    run = index_two_steps(builders.run(project))
    a, b, c, d, e, _f = list_sample_ids(run)

    def answer(sample: str, name: str, value: Any, author: str = "") -> Answer:
        return Answer(sample, name, value, source="code" if author else "human", author=author)

    store_labels(run, mate, [
        answer(a, "correct", True), answer(a, "quality", 4), answer(a, "note", "Guessed the 答案"),
        answer(b, "correct", False), answer(b, "errors", ["logic", "sum"]), answer(b, "cost", 0.25, "price"),
        answer(c, "review", "ok"), answer(d, "quality", 2), answer(e, "quality", 5),
    ])  # fmt: skip
    store_labels(run, owner, [answer(b, "correct", True), answer(a, "quality", 4), answer(d, "note", "x")])
    withdraw_label(Label.objects.get(sample=e), mate)
    builders.flag(c, owner, reason="other")
    return run


def find_letters(run: Run, q: str) -> str:
    """Finds samples and returns them as letters."""
    letters = dict(zip(list_sample_ids(run), "abcdef", strict=True))
    return "".join(sorted(letters[pk] for pk in find_samples(run, q=q).samples.values_list("pk", flat=True)))


def test_a_query_finds_samples_by_their_labels(run: Run) -> None:
    assert {q: find_letters(run, q) for q in MATCHES} == MATCHES


def test_an_invalid_label_term_is_explained(run: Run) -> None:
    for q, message in (
        ("label:corect", "no label `corect`. Available: correct, errors, style, .*flag.other"),
        ("label.corect=no", "no label `corect`"),
        ("label.quality>high", "needs a number"),
        ("label-source:robot", "Unknown value `label-source:robot`. .*label-source:code"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            find_letters(run, q)


def test_a_name_that_only_an_old_label_has_can_still_be_searched(run: Run, project: Project, owner: User) -> None:
    save_rubric(project, owner, [{"key": "taste", "kind": "text"}])
    assert (find_letters(run, "label.quality=4"), find_letters(run, "label:taste")) == ("a", "")


@pytest.mark.parametrize("term", ["label:correct", "label.correct=no", "author:mina", "label-source:code", "no:label"])
def test_label_terms_are_changeable_and_refused_in_a_correctness_rule(term: str) -> None:
    assert all(map(is_changeable_term, parse_query(term).leaves))
    with pytest.raises(InvalidInputError, match="only recorded values, not flags, labels or pins"):
        parse_correctness_rule(f"score>1 {term}")


def test_a_logged_key_named_like_a_label_term_needs_its_prefix() -> None:
    (logged,) = parse_query("extra.label.x=3").leaves
    assert not is_changeable_term(logged)


def test_names_values_and_authors_are_offered(run: Run) -> None:
    expected: dict[str, dict[str, int | None]] = {
        "qual": {"label.quality": None},
        "label.": {"label.correct": None, "label.review": None, "label.style": None, "label.flag.other": None},
        "label:corr": {"label:correct": 2},
        "label.correct=": {"label.correct=yes": 2, "label.correct=no": 1},
        "label.errors:s": {"label.errors:sum": 1},
        "label.quality>=4": {"label.quality>=4": 1},
        "label.cost=": {"label.cost=0.25": 1},
        "author:": {"author:mina": 4, "author:olga": 4, "author:price": 1},
        "label-source:c": {"label-source:code": 1},
        "is:dis": {"is:disagreed": 2},
        "no:la": {"no:label": 2},
    }
    for query, choices in expected.items():
        offered = {choice.text: choice.count for choice in complete_query(run, query).choices}
        assert choices.items() <= offered.items(), (query, offered)
