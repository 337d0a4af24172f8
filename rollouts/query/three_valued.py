"""What a query says for certain of a sample: where a number was not recorded, it is neither true nor false.

`surely` and `surely_not` turn a query into two that share no sample; what answers neither is unknown. `-acc=1` finds
what has no `acc`, as a filter should; as the rule for Correct it must not judge it.
"""

from __future__ import annotations

from rollouts.query.ast import (
    And,
    LoggedKeyTerm,
    Not,
    Or,
    PropertyTerm,
    QueryNode,
    RangeTerm,
    RecordedTerm,
    RegexTerm,
    TextTerm,
)


def build_known_true(node: QueryNode) -> QueryNode:
    """Answered by the samples of which `node` is known to be true."""
    match node:
        case And(parts):
            return And(tuple(map(build_known_true, parts)))
        case Or(parts):
            return Or(tuple(map(build_known_true, parts)))
        case Not(part):
            return build_known_false(part)
        case _:
            return node


def build_known_false(node: QueryNode) -> QueryNode:
    """Answered by the samples of which `node` is known to be false."""
    match node:
        case And(parts):
            return Or(tuple(map(build_known_false, parts)))
        case Or(parts):
            return And(tuple(map(build_known_false, parts)))
        case Not(part):
            return build_known_true(part)
        case _:
            there = recorded(node)
            return And((there, Not(node))) if there else Not(node)


def recorded(leaf: QueryNode) -> QueryNode | None:
    """Answered by the samples of which is known what `leaf` asks; None where that is all of them."""
    match leaf:
        case RangeTerm(key):
            return RecordedTerm(key)
        case RecordedTerm():
            return leaf
        case LoggedKeyTerm(key, _, _, _, span):
            return LoggedKeyTerm(key, "known", "", None, span)
        case TextTerm() | RegexTerm():
            return Not(PropertyTerm("no-text"))
        case _:
            return None
