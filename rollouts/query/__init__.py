"""The query language: text becomes a syntax tree, then SQL conditions and a scan of the sample bodies.

Depends on: samples and storage.
Invariant: one query means the same rows on every page, in the API, in an export and on the command line.
"""

from rollouts.query.ast import (
    And,
    BodyTerm,
    InvalidQueryError,
    LabelTerm,
    LoggedKeyTerm,
    MissingTerm,
    NameTerm,
    Not,
    Or,
    PropertyTerm,
    Query,
    QueryNode,
    RangeTerm,
    RecordedTerm,
    RegexTerm,
    TextTerm,
    collect_leaves,
    is_changeable_term,
)
from rollouts.query.body_scan import (
    ScanRequest,
    TimeBudget,
    find_matching_texts,
    get_scan_request,
    help_scan,
    list_trainer_columns,
    read_memory,
    scan_bodies,
    start_scan_request,
)
from rollouts.query.completion import (
    CompletionChoice,
    QueryCompletion,
    complete_query,
    complete_query_of_runs,
    format_range,
)
from rollouts.query.correctness_rule import (
    DEFAULT_RULE_TEXT,
    build_known_false,
    build_known_true,
    get_rule_text,
    name_correctness_rules,
    parse_correctness_rule,
)
from rollouts.query.grammar import ASCII_SIGNS, KEY_PATTERN, RESERVED_WORDS, quote_value
from rollouts.query.hits import Snippet, build_hit_pattern, find_hits, find_snippets
from rollouts.query.parser import parse_query
from rollouts.query.rescore_terms import RESCORE_PREFIX, format_disagreement, list_rescores, resolve_rescores
from rollouts.query.search import PART_PREFIX, SAMPLE_ORDERINGS, QueryResult, build_query_condition, find_samples
from rollouts.query.sql import QueryScope, build_condition, list_required_nodes
from rollouts.query.term_editing import QueryTerms, find_number_ranges, find_term_span, split_terms
from rollouts.query.vocabulary import SAMPLE_VOCABULARY, Vocabulary

__all__ = [
    "ASCII_SIGNS", "And", "BodyTerm", "CompletionChoice", "DEFAULT_RULE_TEXT", "InvalidQueryError", "KEY_PATTERN",
    "LabelTerm", "LoggedKeyTerm", "MissingTerm", "NameTerm", "Not", "Or", "PART_PREFIX", "PropertyTerm", "Query",
    "QueryCompletion", "QueryNode", "QueryResult", "QueryScope", "QueryTerms", "RESCORE_PREFIX", "RESERVED_WORDS",
    "RangeTerm", "RecordedTerm", "RegexTerm", "SAMPLE_ORDERINGS", "SAMPLE_VOCABULARY", "ScanRequest", "Snippet",
    "TextTerm", "TimeBudget", "Vocabulary", "build_condition", "build_hit_pattern", "build_known_false",
    "build_known_true", "build_query_condition", "collect_leaves", "complete_query", "complete_query_of_runs",
    "find_hits", "find_matching_texts", "find_number_ranges", "find_samples", "find_snippets", "find_term_span",
    "format_disagreement", "format_range", "get_rule_text", "get_scan_request", "help_scan", "is_changeable_term",
    "list_required_nodes", "list_rescores", "list_trainer_columns", "name_correctness_rules", "parse_correctness_rule",
    "parse_query", "quote_value", "read_memory", "resolve_rescores", "scan_bodies", "split_terms",
    "start_scan_request",
]  # fmt: skip
