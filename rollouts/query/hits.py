"""Where a query matches inside of texts: hits to mark, and a snippet around the first one for lists.

The pattern is matched by the engine that searches the sample bodies, so what is marked is what was found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rollouts.query.ast import And, Or, Query, QueryNode, RegexTerm, TextTerm
from rollouts.query.body_scan import collect_frame, find_regex_error

BYTES_BEFORE: Final = 160  # that are read in front of a hit
BYTES_AFTER: Final = 900
CHARS_BEFORE: Final = 24  # in front of the hit, in whole words
MIN_WORD_CHARS: Final = 12  # a longer run without spaces is cut inside
LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")  # which the engine does not accept
MARKS: Final = ("\ufdd0", "\ufdd1")  # noncharacters, around each hit


@dataclass(frozen=True, slots=True)
class Snippet:
    """The text around the first hit in the response, else in the prompt. `count` is the number of hits in both.
    `is_cut`: the text begins before `before`."""

    before: str
    hit: str
    after: str
    count: int
    is_cut: bool
    in_prompt: bool


def build_hit_pattern(query: Query) -> str:
    """Returns a regular expression for the texts that the query requires, empty if it requires none.

    Each regular expression of a query is valid, but some are not inside of another one, such as two with a group of one
    name, or one that ends with a comment. Of those, only the first is a part of the result, or none.
    """
    terms = list_positive_text_terms(query.root) if query.root else []
    patterns = list(dict.fromkeys(map(build_term_pattern, terms)))
    if any(isinstance(term, RegexTerm) for term in terms):
        patterns = [pattern for pattern in patterns if is_usable(pattern)]
        if not is_usable("|".join(patterns)):
            return patterns[0]
    return "|".join(patterns)


def is_usable(pattern: str) -> bool:
    return not find_regex_error(f"(?P<rd_hit>{pattern})")


def list_positive_text_terms(node: QueryNode) -> list[TextTerm | RegexTerm]:
    if isinstance(node, And | Or):
        return [term for part in node.parts for term in list_positive_text_terms(part)]
    return [node] if isinstance(node, TextTerm | RegexTerm) else []


def build_term_pattern(term: TextTerm | RegexTerm) -> str:
    import polars as pl

    if isinstance(term, RegexTerm):
        return f"(?:{term.pattern})"
    escaped = pl.escape_regex(term.text)
    return f"(?i:{escaped})" if term.any_case and term.text.upper() != term.text else escaped


def find_hits(text: str, pattern: str) -> list[tuple[int, int]]:
    """Returns (start, end) of each hit that is not empty."""
    import polars as pl

    if not pattern or not text:
        return []
    text = LONE_SURROGATES.sub(" ", text)
    for mark in MARKS:
        text = text.replace(mark, " ")
    marks = f"{MARKS[0]}${{rd_hit}}{MARKS[1]}"
    query = pl.LazyFrame({"text": [text]}).select(pl.col("text").str.replace_all(f"(?P<rd_hit>{pattern})", marks))
    marked = collect_frame(query, pattern).item()
    first, *others = str(marked).split(MARKS[0])
    hits: list[tuple[int, int]] = []
    position = len(first)
    for part in others:
        hit, _, rest = part.partition(MARKS[1])
        if hit:
            hits.append((position, position + len(hit)))
        position += len(hit) + len(rest)
    return hits


def find_snippets(texts: Mapping[str, tuple[str, str]], query: Query) -> dict[str, Snippet]:
    """Returns the snippets by sample id. `texts` are (prompt, response) by sample id."""
    import polars as pl

    pattern = build_hit_pattern(query)
    if not pattern or not texts:
        return {}
    hit_pattern = f"({pattern})"
    columns = {"prompt": [prompt for prompt, _ in texts.values()], "response": [text for _, text in texts.values()]}
    expressions = [
        expression.alias(f"{name}.{kind}")
        for name in columns
        for kind, expression in (
            ("at", pl.col(name).str.find(hit_pattern)),
            ("hit", pl.col(name).str.extract(hit_pattern, 1)),
            ("count", pl.col(name).str.count_matches(hit_pattern)),
        )
    ]
    rows = collect_frame(pl.LazyFrame(columns).select(expressions), pattern).rows(named=True)
    snippets: dict[str, Snippet] = {}
    for (sample, (prompt, response)), row in zip(texts.items(), rows, strict=True):
        count = row["response.count"] + row["prompt.count"]
        for name, text in (("response", response), ("prompt", prompt)):
            if row[f"{name}.hit"]:
                parts = cut_around(text, row[f"{name}.at"], row[f"{name}.hit"])
                snippets[sample] = Snippet(*parts[:3], count, parts[3], in_prompt=name == "prompt")
                break
    return snippets


def cut_around(text: str, start: int, hit: str) -> tuple[str, str, str, bool]:
    """Returns (before, hit, after, whether the text begins earlier). `start` counts bytes of UTF-8."""
    data = text.encode()
    end = start + len(hit.encode())
    before = data[max(0, start - BYTES_BEFORE) : start].decode("utf-8", "ignore")
    after = data[end : end + BYTES_AFTER].decode("utf-8", "ignore")
    kept = keep_last_words(before)
    return kept, hit[:300], after[:300], len(kept) < len(before) or start > BYTES_BEFORE


def keep_last_words(text: str) -> str:
    """Returns the end of a text, from the beginning of a word. Of text without spaces, from a letter that does not
    combine with the one before."""
    if len(text) <= CHARS_BEFORE:
        return text
    at = len(text) - CHARS_BEFORE
    if space := re.search(r"\s", text[at : at + MIN_WORD_CHARS]):
        return text[at + space.end() :]
    return text[find_grapheme_start(text, at) :]


def find_grapheme_start(text: str, at: int) -> int:
    """Returns the position at or after `at` where a character begins that is not joined to the one before."""
    from unicodedata import category

    joined = {"\u200d"}
    while at < len(text) and (category(text[at]) in ("Mn", "Me", "Mc", "Sk", "Cf") or text[at - 1] in joined):
        at += 1
    return at
