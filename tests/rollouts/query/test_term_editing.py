"""Terms of a query are added, removed and filtered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.query import term_editing
from rollouts.query.ast import InvalidQueryError
from rollouts.query.parser import parse_query

PIECES = [
    "score<0.2",
    "is:truncated",
    '"a b"',
    "(x or y)",
    "-(len>9 z)",
    "/a b/",
    "step:1..2",
    "or",
    "-",
    "(",
    ")",
    " ",
]


@pytest.mark.parametrize(
    ("q", "added", "expected"),
    [
        ("", "is:empty", "is:empty"),
        ("is:empty", "is:empty", ""),
        ("score<0.2 is:empty foo", "is:empty", "score<0.2 foo"),
        ("foo", "score>0 score<0.5", "foo score>0 score<0.5"),
        ("score>0 foo score<0.5", "score>0 score<0.5", "foo"),
        ("a or b", "is:empty", "(a or b) is:empty"),
        ("(a or b)", "is:empty", "(a or b) is:empty"),
        ("(a or b) is:empty", "is:empty", "(a or b)"),
        ('"is:empty" x', "is:empty", '"is:empty" x is:empty'),
        ('source:"a b" x', 'source:"a b"', "x"),
        ("-is:empty", "is:empty", "-is:empty is:empty"),
    ],
)
def test_a_term_is_added_once_and_removed_the_next_time(q: str, added: str, expected: str) -> None:
    assert term_editing.split_terms(q).toggle(added) == expected


def test_terms_that_compare_the_given_keys_are_removed() -> None:
    q = "score<0.2 -len>=9 foo len:1..5 n=3 score!=0 (score>0 or bar)"
    assert term_editing.split_terms(q).remove_keys("score", "len") == "foo n=3 (score>0 or bar)"


def test_terms_inside_an_alternative_are_not_removed() -> None:
    assert term_editing.split_terms("score>0 or len>9").remove_keys("score") == "score>0 or len>9"


@given(st.lists(st.sampled_from(PIECES)).map(" ".join))
def test_the_joined_terms_of_a_query_mean_the_same(q: str) -> None:
    result = term_editing.split_terms(q)
    try:
        requested = parse_query(q)
    except InvalidQueryError:
        assert [term.text for term in result.terms] == [q.strip()]
    else:
        assert parse_query(result.filter(lambda term: True)).root == requested.root
