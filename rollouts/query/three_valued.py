"""What a query says for certain of a sample: where a number was not recorded, it is neither true nor false.

`surely` and `surely_not` turn a query into two that share no sample; what answers neither is unknown. `-acc=1` finds
what has no `acc`, as a filter should; as the rule for Correct it must not judge it.
"""

from __future__ import annotations

from rollouts.query.ast import And, Is, Known, Logged, Node, Not, Or, Range, Regex, Text


def surely(node: Node) -> Node:
    """Answered by the samples of which `node` is known to be true."""
    match node:
        case And(parts):
            return And(tuple(map(surely, parts)))
        case Or(parts):
            return Or(tuple(map(surely, parts)))
        case Not(part):
            return surely_not(part)
        case _:
            return node


def surely_not(node: Node) -> Node:
    """Answered by the samples of which `node` is known to be false."""
    match node:
        case And(parts):
            return Or(tuple(map(surely_not, parts)))
        case Or(parts):
            return And(tuple(map(surely_not, parts)))
        case Not(part):
            return surely(part)
        case _:
            there = recorded(node)
            return And((there, Not(node))) if there else Not(node)


def recorded(leaf: Node) -> Node | None:
    """Answered by the samples of which is known what `leaf` asks; None where that is all of them."""
    match leaf:
        case Range(key):
            return Known(key)
        case Known():
            return leaf
        case Logged(key, _, _, _, span):
            return Logged(key, "known", "", None, span)
        case Text() | Regex():
            return Not(Is("no-text"))
        case _:
            return None
