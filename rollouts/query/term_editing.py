"""The terms of a query as they are written, so that a chart or a chip can add one, and take it away again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollouts.lib.cache import MAX_QUERY_TERMS, cached
from rollouts.query.ast import And, BadQuery, Known, Logged, Named, Node, Not, Range
from rollouts.query.grammar import parser
from rollouts.query.parser import Reader, parse


@dataclass(frozen=True, slots=True)
class Term:
    """One of the terms that all have to hold: its place in the query, as written, and what it asks."""

    start: int
    end: int
    text: str
    node: Node


@dataclass(frozen=True, slots=True)
class Terms:
    """`either` where the query is one choice between terms (`a or b`), which is then its only term."""

    query: str
    all: tuple[Term, ...]
    either: bool = False

    def holds(self, added: str) -> bool:
        """Whether every term of `added` is one of these, as written."""
        own = {term.text for term in self.all}
        return not self.either and all(term.text in own for term in of(added).all)

    def plus(self, added: str) -> str:
        """The query narrowed by `added`; a choice goes into parentheses first."""
        own = f"({self.query.strip()})" if self.either else self.query.strip()
        return f"{own} {added}".strip()

    def without(self, added: str) -> str:
        """The query without the terms of `added`."""
        gone = {term.text for term in of(added).all}
        return self.cut(lambda term: term.text in gone)

    def without_keys(self, *keys: str) -> str:
        """The query without its terms about these numbers."""
        return self.cut(lambda term: key_of(term.node) in keys)

    def cut(self, drop: Any) -> str:
        if self.either:
            return self.query.strip()
        return " ".join(term.text for term in self.all if not drop(term))

    def toggled(self, added: str) -> str:
        return self.without(added) if self.holds(added) else self.plus(added)


@cached(MAX_QUERY_TERMS)
def of(q: str) -> Terms:
    """The terms of a query; one that cannot be read counts as one term, its whole text."""
    try:
        parse(q)
        tree = parser().parse(q)
    except BadQuery:
        return Terms(q, (Term(0, len(q), q.strip(), Known("")),))
    if not tree.children:
        return Terms(q, ())
    top: Any = tree.children[0]
    parts = top.children if top.data == "both" else [top]
    return Terms(q, tuple(term(q, part) for part in parts), either=top.data == "either" and not inside(top))


def ranges(q: str) -> list[Range]:
    """What a query that can be read demands of numbers."""
    return [term.node for term in of(q).all if isinstance(term.node, Range)]


def term(q: str, tree: Any) -> Term:
    start, end = place(tree)
    return Term(start, end, q[start:end], Reader(q).node(tree, 0))


def place(tree: Any) -> tuple[int, int]:
    """Where a tree stands, the parentheses around it included."""
    meta = tree.meta
    start = getattr(meta, "container_start_pos", meta.start_pos)
    return start, getattr(meta, "container_end_pos", meta.end_pos)


def inside(tree: Any) -> bool:
    """In parentheses."""
    return place(tree) != (tree.meta.start_pos, tree.meta.end_pos)


def key_of(node: Node) -> str:
    """The number, name or logged key that a term asks for; empty for others."""
    match node:
        case Range(key) | Known(key) | Logged(key):
            return key
        case Named(name):
            return name
        case Not(part):
            return key_of(part)
        case And(parts):  # `!=` is two of the same key
            keys = {key_of(part) for part in parts}
            return keys.pop() if len(keys) == 1 else ""
        case _:
            return ""
