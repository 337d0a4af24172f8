"""The terms of a query as the user wrote them: charts and filter chips add and remove them, completion finds one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollouts.lib import CacheSize, cached
from rollouts.query.ast import (
    And,
    InvalidQueryError,
    LabelTerm,
    LoggedKeyTerm,
    NameTerm,
    Not,
    Or,
    QueryNode,
    RangeTerm,
    RecordedTerm,
)
from rollouts.query.grammar import get_grammar_parser
from rollouts.query.parser import AstBuilder, parse_query
from rollouts.query.vocabulary import SAMPLE_VOCABULARY, Vocabulary


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """A term as it is written, and its syntax tree."""

    text: str
    node: QueryNode


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The terms of a query that must all match. `is_choice` is set if the query is `a or b`, then its only term."""

    query: str
    terms: tuple[QueryTerm, ...]
    is_choice: bool = False
    vocabulary: Vocabulary = SAMPLE_VOCABULARY

    def contains(self, added: str) -> bool:
        """Returns whether the query has every term of `added`, written the same."""
        texts = {term.text for term in self.terms}
        return not self.is_choice and all(term.text in texts for term in split_terms(added, self.vocabulary).terms)

    def add(self, added: str) -> str:
        """Returns the query narrowed by `added`. A choice gets parentheses first."""
        own = f"({self.query.strip()})" if self.is_choice else self.query.strip()
        return f"{own} {added}".strip()

    def remove(self, removed: str) -> str:
        """Returns the query without the terms of `removed`."""
        texts = {term.text for term in split_terms(removed, self.vocabulary).terms}
        return self.filter(lambda term: term.text not in texts)

    def remove_keys(self, *keys: str) -> str:
        """Returns the query without its terms about these numbers."""
        return self.filter(lambda term: get_key(term.node) not in keys)

    def filter(self, keep: Callable[[QueryTerm], bool]) -> str:
        return self.query.strip() if self.is_choice else " ".join(term.text for term in self.terms if keep(term))

    def toggle(self, term: str) -> str:
        return self.remove(term) if self.contains(term) else self.add(term)


@cached(CacheSize.QUERY_TERMS)
def split_terms(q: str, vocabulary: Vocabulary = SAMPLE_VOCABULARY) -> QueryTerms:
    """Returns the terms of a query. An invalid query is one term."""
    try:
        parse_query(q, vocabulary)
        tree = get_grammar_parser().parse(q)
    except InvalidQueryError:
        return QueryTerms(q, (QueryTerm(q.strip(), RecordedTerm("")),), vocabulary=vocabulary)
    if not tree.children:
        return QueryTerms(q, (), vocabulary=vocabulary)
    top: Any = tree.children[0]
    parts = top.children if top.data == "both" else [top]
    terms = tuple(
        QueryTerm(q[slice(*get_outer_span(part))], AstBuilder(q, vocabulary).build_node(part, 0)) for part in parts
    )
    in_parentheses = get_outer_span(top) != (top.meta.start_pos, top.meta.end_pos)
    is_choice = top.data == "either" and not in_parentheses
    return QueryTerms(q, terms, is_choice, vocabulary)


def find_number_ranges(q: str) -> list[RangeTerm]:
    """Returns the ranges of numbers that every matching sample is in."""
    return [term.node for term in split_terms(q).terms if isinstance(term.node, RangeTerm)]


def find_term_span(q: str, at: int) -> tuple[int, int]:
    """Returns the span of the term at character `at`, without the sign that negates it."""
    start, closing_quotes = 0, ""
    for position, character in enumerate(q[:at]):
        if closing_quotes:
            closing_quotes = "" if character in closing_quotes else closing_quotes
        elif character in '"＂':
            closing_quotes = character
        elif character in "“”":
            closing_quotes = "“”"
        elif character.isspace() or character in "()（）":
            start = position + 1
    if q[start:at].startswith(("-", "－")):
        start += 1
    end = at
    while not closing_quotes and end < len(q) and not q[end].isspace() and q[end] not in "()（）":
        end += 1
    return start, end


def get_outer_span(tree: Any) -> tuple[int, int]:
    """Returns the span of a tree in the query, with the parentheses around it."""
    meta = tree.meta
    return getattr(meta, "container_start_pos", meta.start_pos), getattr(meta, "container_end_pos", meta.end_pos)


def get_key(node: QueryNode) -> str:
    """Returns the number, name or logged key of a term, empty for other terms."""
    match node:
        case RangeTerm(key) | RecordedTerm(key) | LoggedKeyTerm(key):
            return key
        case NameTerm(name):
            return name
        case LabelTerm(name):
            return f"label.{name}"
        case Not(part):
            return get_key(part)
        case And(parts) | Or(parts):  # `!=` is two terms with the same key, a list several
            keys = {get_key(part) for part in parts}
            return keys.pop() if len(keys) == 1 else ""
        case _:
            return ""
