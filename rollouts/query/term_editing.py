"""The terms of a query as they are written, so that a chart or a chip can add one, and take it away again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollouts.lib import MAX_QUERY_TERMS, cached
from rollouts.query.ast import And, InvalidQueryError, LoggedKeyTerm, NameTerm, Not, QueryNode, RangeTerm, RecordedTerm
from rollouts.query.grammar import get_grammar_parser
from rollouts.query.parser import AstBuilder, parse_query


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """One of the terms that all have to hold: its place in the query, as written, and what it asks."""

    start: int
    end: int
    text: str
    node: QueryNode


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """`either` where the query is one choice between terms (`a or b`), which is then its only term."""

    query: str
    terms: tuple[QueryTerm, ...]
    is_choice: bool = False

    def contains(self, added: str) -> bool:
        """Whether every term of `added` is one of these, as written."""
        own = {term.text for term in self.terms}
        return not self.is_choice and all(term.text in own for term in split_terms(added).terms)

    def add(self, added: str) -> str:
        """The query narrowed by `added`; a choice goes into parentheses first."""
        own = f"({self.query.strip()})" if self.is_choice else self.query.strip()
        return f"{own} {added}".strip()

    def remove(self, added: str) -> str:
        """The query without the terms of `added`."""
        gone = {term.text for term in split_terms(added).terms}
        return self.cut(lambda term: term.text in gone)

    def remove_keys(self, *keys: str) -> str:
        """The query without its terms about these numbers."""
        return self.cut(lambda term: key_of(term.node) in keys)

    def cut(self, drop: Any) -> str:
        if self.is_choice:
            return self.query.strip()
        return " ".join(term.text for term in self.terms if not drop(term))

    def toggle(self, added: str) -> str:
        return self.remove(added) if self.contains(added) else self.add(added)


@cached(MAX_QUERY_TERMS)
def split_terms(q: str) -> QueryTerms:
    """The terms of a query; one that cannot be read counts as one term, its whole text."""
    try:
        parse_query(q)
        tree = get_grammar_parser().parse(q)
    except InvalidQueryError:
        return QueryTerms(q, (QueryTerm(0, len(q), q.strip(), RecordedTerm("")),))
    if not tree.children:
        return QueryTerms(q, ())
    top: Any = tree.children[0]
    parts = top.children if top.data == "both" else [top]
    return QueryTerms(q, tuple(term(q, part) for part in parts), is_choice=top.data == "either" and not inside(top))


def find_number_ranges(q: str) -> list[RangeTerm]:
    """What a query that can be read demands of numbers."""
    return [term.node for term in split_terms(q).terms if isinstance(term.node, RangeTerm)]


def term(q: str, tree: Any) -> QueryTerm:
    start, end = place(tree)
    return QueryTerm(start, end, q[start:end], AstBuilder(q).node(tree, 0))


def place(tree: Any) -> tuple[int, int]:
    """Where a tree stands, the parentheses around it included."""
    meta = tree.meta
    start = getattr(meta, "container_start_pos", meta.start_pos)
    return start, getattr(meta, "container_end_pos", meta.end_pos)


def inside(tree: Any) -> bool:
    """In parentheses."""
    return place(tree) != (tree.meta.start_pos, tree.meta.end_pos)


def key_of(node: QueryNode) -> str:
    """The number, name or logged key that a term asks for; empty for others."""
    match node:
        case RangeTerm(key) | RecordedTerm(key) | LoggedKeyTerm(key):
            return key
        case NameTerm(name):
            return name
        case Not(part):
            return key_of(part)
        case And(parts):  # `!=` is two of the same key
            keys = {key_of(part) for part in parts}
            return keys.pop() if len(keys) == 1 else ""
        case _:
            return ""
