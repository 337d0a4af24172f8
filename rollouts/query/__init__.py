"""The query language: text becomes a syntax tree, then SQL conditions and a scan of the sample bodies.

Depends on: samples and storage.
Invariant: one query means the same rows on every page, in the API, in an export and on the command line.
"""

from rollouts.query.ast import (
    And,
    BodyTerm,
    InvalidQueryError,
    Not,
    Or,
    Query,
    QueryNode,
    RangeTerm,
    TextTerm,
    is_changeable_term,
)
from rollouts.query.body_scan import TimeBudget, scan_bodies
from rollouts.query.completion import complete_query
from rollouts.query.correctness_rule import (
    DEFAULT_RULE_TEXT,
    build_known_false,
    build_known_true,
    get_rule_text,
    parse_correctness_rule,
)
from rollouts.query.grammar import quote_value
from rollouts.query.parser import parse_query
from rollouts.query.search import SAMPLE_ORDERINGS, QueryResult, find_samples
from rollouts.query.sql import QueryScope, build_condition
from rollouts.query.term_editing import find_number_ranges, split_terms

__all__ = [
    "And", "BodyTerm", "DEFAULT_RULE_TEXT", "InvalidQueryError", "Not", "Or", "Query", "QueryNode", "QueryResult",
    "QueryScope", "RangeTerm", "SAMPLE_ORDERINGS", "TextTerm", "TimeBudget", "build_condition", "build_known_false",
    "build_known_true", "complete_query", "find_number_ranges", "find_samples", "get_rule_text",
    "is_changeable_term", "parse_correctness_rule", "parse_query", "quote_value", "scan_bodies", "split_terms",
]  # fmt: skip
