"""Queries are parsed, and invalid ones are refused with a message and a position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.errors import InvalidInputError
from rollouts.query.ast import (
    And,
    InvalidQueryError,
    LoggedKeyTerm,
    NameTerm,
    Not,
    Or,
    PropertyTerm,
    RangeTerm,
    RegexTerm,
    TextTerm,
)
from rollouts.query.parser import parse_query

PIECES = [
    *("score", "len", "acc", "extra.", "source:", "is:", "truncated", "step:1..2", "..", "0.2", "%", "余数", "[a"),
    *("<", ">=", "=", "!=", ":", "-", "(", ")", " or ", " and ", " ", '"', "/", "\\"),
    *("（", "）", "：", "＜", "“", "”", "\x00", "\ud800", "\n"),
]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_string_is_read_or_refused_with_a_message_and_a_position(q: str) -> None:
    try:
        parse_query(q)
    except InvalidQueryError as error:
        assert isinstance(error, InvalidInputError)
        assert str(error).endswith((".", "?"))
        assert 0 <= error.span[0] <= error.span[1] <= len(q)


def test_the_empty_query_has_no_condition() -> None:
    assert parse_query("").root is None
    assert parse_query("  \u3000").root is None


def test_space_binds_tighter_than_or_and_parentheses_tighter_than_both() -> None:
    a, b, c = (TextTerm(word, any_case=True) for word in "abc")
    assert parse_query("a b or c").root == Or((And((a, b)), c))
    assert parse_query("a and (b or -c)").root == And((a, Or((b, Not(c)))))


def test_full_width_signs_are_read_as_ascii_signs() -> None:
    assert parse_query("（score＜0.2 or is：truncated）").root == parse_query("(score<0.2 or is:truncated)").root
    assert parse_query("“首先，我们”").root == TextTerm("首先，我们", any_case=False)
    assert parse_query("score＞＝１").root == parse_query("score>=1").root
    assert parse_query("score≦０．５ len≧9").root == parse_query("score<=0.5 len>=9").root


@pytest.mark.parametrize("quoted", ["“首先，a”", "＂首先，a＂", "「首先，a」", "『首先，a』"])
def test_chinese_quotes_hold_a_phrase_and_a_value(quoted: str) -> None:
    assert parse_query(quoted).root == TextTerm("首先，a", any_case=False)
    assert parse_query(f"source：{quoted}").root == parse_query('source:"首先，a"').root


def test_brackets_inside_a_word_stay_as_typed() -> None:
    assert parse_query("他说「是」吗").root == TextTerm("他说「是」吗", any_case=True)


def test_signs_inside_words_and_quotes_stay_as_typed() -> None:
    assert parse_query("首先，我们").root == TextTerm("首先，我们", any_case=True)
    assert parse_query('"a：（b）"').root == TextTerm("a：（b）", any_case=False)
    assert parse_query("heapq.merge(*runs)").root == TextTerm("heapq.merge(*runs)", any_case=True)
    assert parse_query("答案：42").root == TextTerm("答案：42", any_case=True)
    assert parse_query("https://example.org/x").root == TextTerm("https://example.org/x", any_case=True)


def test_quotes_keep_escaped_quotes() -> None:
    assert parse_query(r'"say \"yes\" \\ n"').root == TextTerm(r'say "yes" \ n', any_case=False)


def test_a_word_with_a_capital_letter_is_case_sensitive() -> None:
    assert parse_query("Wait").root == TextTerm("Wait", any_case=False)


def test_ranges_may_be_open() -> None:
    assert parse_query("step:100..200").root == RangeTerm("step", 100, 200)
    assert parse_query("step:..7").root == RangeTerm("step", None, 7)
    assert parse_query("n:3").root == RangeTerm("n", 3, 3)


def test_keys_of_the_run_are_read_with_or_without_extra() -> None:
    assert parse_query("extra.format_reward=0").root == parse_query("format_reward=0").root
    requested = parse_query('extra."a key":loop').root
    assert isinstance(requested, LoggedKeyTerm) and (requested.key, requested.sign, requested.text) == (
        "a key",
        ":",
        "loop",
    )


def test_the_fields_are_known() -> None:
    parts = parse_query(
        'split:eval group:g1 prompt:abc source:"open ai/gsm8k" reason:"reward hack" is:ZeroVar /a\\/b/'
    ).root
    assert isinstance(parts, And)
    assert [part.name for part in parts.parts if isinstance(part, NameTerm)] == [
        "split",
        "group",
        "prompt",
        "source",
        "reason",
    ]
    assert parts.parts[5:] == (PropertyTerm("zerovar"), RegexTerm("a/b"))


def test_no_answer_means_no_marker() -> None:
    assert parse_query("no:answer").root == parse_query("no:marker").root


def test_a_query_for_truncation_notes_that_it_may_be_inferred() -> None:
    assert "inferred" in parse_query("-is:truncated").notes[0]
    assert parse_query("score<1").notes == ()


@pytest.mark.parametrize(
    ("q", "message", "bad"),
    [
        ("sorce:gsm8k", "Did you mean `source`", "sorce:gsm8k"),
        ("is:trncated", "Did you mean `truncated`", "is:trncated"),
        ("split:test", "split:train, split:eval", "split:test"),
        ("ok score<high", "needs a number, for example `score<1`", "high"),
        ("score<", "incomplete: a value or a term is missing", "score<"),
        ("len>1.5", "needs a whole number", "1.5"),
        ("note<abc", "needs a number", "note<abc"),
        ("step:a..b", "a number or a range", "step:a..b"),
        ("step:5..1", "Put the smaller number first: `step:1..5`", "step:5..1"),
        ("extra.=1", "`extra.` needs a key", "extra.=1"),
        ('x "abc', "Missing closing quote", '"abc'),
        ("x 「abc", "Missing closing quote", "「abc"),
        ("/ab", "has no closing `/`", "/ab"),
        ("/(/", "Invalid regular expression", "/(/"),
        ('""', "quotes are empty", '""'),
        ("(a b", "Missing closing parenthesis", "b"),
        ("a)", "Missing opening parenthesis", ")"),
        ("()", "parentheses are empty", "()"),
        ("a - b", "Unexpected `-`. Quote it", "-"),
        ("(" * 30 + "a b" + ")" * 30 + "-" * 30 + "c", "nested", None),
        ("a " * 70, "70 terms", None),
        ("x" * 5000, "has 5,000 characters", None),
        ("/" + "x" * 1001 + "/", "more than 1,000 characters", None),
        ("/(\\w{900}){900}/", "Invalid regular expression", None),
        ("n=99999999999999999999", "needs a whole number", "99999999999999999999"),
    ],
)
def test_an_invalid_query_is_refused_with_a_message_and_a_position(q: str, message: str, bad: str | None) -> None:
    with pytest.raises(InvalidQueryError, match=message.replace("(", r"\(")) as caught:
        parse_query(q)
    if bad is not None:
        start, end = caught.value.span
        assert q[start:end] == bad
