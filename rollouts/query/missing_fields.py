"""Why a query may find nothing: it asks for what no sample has where it looks."""

from __future__ import annotations

from typing import Final

from django.db.models import Q

from rollouts.query.ast import And, NameTerm, Not, Or, Query, QueryNode, RangeTerm
from rollouts.query.sql import QueryScope

# A word of the query language, and which samples have something of it.
HAVING: Final = {
    "score": Q(score__isnull=False),
    "tokens": Q(tokens__isnull=False),
    "adv": Q(advantage__isnull=False),
    "n": Q(index__isnull=False),
    "source": ~Q(data_source=""),
    "group": ~Q(group=""),
}


def find_unrecorded_fields(query: Query, scope: QueryScope) -> list[str]:
    """The words of the query that ask for something which no sample of its step has; none said of several steps, whose
    samples may be millions. Logged keys are not among them: those that nobody logged are errors."""
    if query.root is None or scope.step_id is None:
        return []
    asked = [name for leaf in wanted(query.root) if (name := word(leaf)) in HAVING]
    return [name for name in dict.fromkeys(asked) if not scope.samples().filter(HAVING[name]).exists()]


def wanted(root: QueryNode) -> list[QueryNode]:
    """The leaves that are not denied."""
    if isinstance(root, And | Or):
        return [leaf for part in root.parts for leaf in wanted(part)]
    return [] if isinstance(root, Not) else [root]


def word(leaf: QueryNode) -> str:
    match leaf:
        case RangeTerm(key=key):
            return key
        case NameTerm(name=name):
            return name
    return ""
