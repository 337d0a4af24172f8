"""Hits are marked with the rules of the search, and snippets show whole words around the first hit."""

from __future__ import annotations

import pytest

from rollouts.query import build_hit_pattern, find_hits, find_snippets, parse_query


def list_hits(text: str, q: str) -> list[str]:
    return [text[start:end] for start, end in find_hits(text, build_hit_pattern(parse_query(q)))]


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("cat", ["cat", "CAT", "cat"]), ('"cat"', ["cat", "cat"]), ("CAT", ["CAT"]), (r"/\bcat\b/", ["cat"]),
        ("/x*/", []), ("-cat", []), ("cat or 你好", ["cat", "CAT", "你好", "cat"]), ("score>0 is:empty", []),
        ("/(?P<n>c)at/", ["cat", "cat"]), (r"/[.*+]/", ["."]),
        ("/(?P<n>c)at/ or /(?P<n>C)AT/", ["cat", "cat"]), ("/(?x) c # first/", []), ("/(?x) c # first/ or /C/", ["C"]),
    ],
)  # fmt: skip
def test_hits_are_those_of_the_search(q: str, expected: list[str]) -> None:
    assert list_hits("concat a CAT, 你好 é\ufdd0 \ud800 cat.", q) == expected


def render_snippet(text: str, q: str, prompt: str = "") -> str:
    found = find_snippets({"a": (prompt, text)}, parse_query(q)).get("a")
    return f"{'…' if found.is_cut else ''}{found.before}[{found.hit}]{found.after[:9]} {found.count}" if found else ""


def test_a_snippet_has_whole_words_before_the_hit() -> None:
    assert render_snippet("hit at once", "hit") == "[hit] at once 1"
    assert render_snippet("word " * 99 + "unbelievable things and a hit here", "hit") == "…things and a [hit] here 1"
    assert render_snippet("很" * 99 + "好命中了", "命中") == "…" + "很" * 23 + "好[命中]了 1"
    assert render_snippet("a hit, a hit", "hit", prompt="another hit") == "a [hit], a hit 3"
    assert render_snippet("no", "hit", prompt="in the hit") == "in the [hit] 1"
    assert render_snippet("no", "hit") == render_snippet("hit", "score>0") == ""


@pytest.mark.parametrize("letter", ["e\u0301\u0302", "👩\u200d👩\u200d👧", "नि", "👍🏽"])
def test_a_snippet_begins_with_a_whole_letter(letter: str) -> None:
    for extra in range(len(letter)):
        found = find_snippets({"a": ("", "x" * extra + letter * 60 + "hit")}, parse_query("hit"))["a"]
        assert (found.before.replace(letter, ""), found.is_cut) == ("", True)
