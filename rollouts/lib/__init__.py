"""Helpers that know no table: input validation, secret redaction, bounded caches, process ids.

Depends on: the exceptions in `rollouts.errors`.
Invariant: nothing here reads the database.
"""

from rollouts.lib.cache import (
    MAX_CHART_BYTES,
    MAX_COMPARISONS,
    MAX_DECODERS,
    MAX_FOUND_IDS,
    MAX_GROUP_NAMES,
    MAX_GROUP_ORDERS,
    MAX_HEATMAPS,
    MAX_KEYBOARD_TEXTS,
    MAX_LAST_VALUES,
    MAX_LOGGED_KEYS,
    MAX_QUERY_RESULTS,
    MAX_QUERY_TERMS,
    MAX_SAMPLE_TABLES,
    MAX_SCATTERS,
    MAX_SPARKLINES,
    MAX_STEP_STRIPS,
    MAX_TABLE_LAYOUTS,
    MAX_TOKEN_COMMANDS,
    MAX_WORST_SAMPLES,
    Cache,
    cached,
)
from rollouts.lib.process_id import get_current_process_id, has_process_ended
from rollouts.lib.redaction import redact_secrets
from rollouts.lib.validation import (
    MAX_INT64,
    parse_boolean,
    parse_choice,
    parse_integer,
    parse_multiline_text,
    parse_text,
)

__all__ = [
    "Cache", "MAX_CHART_BYTES", "MAX_COMPARISONS", "MAX_DECODERS", "MAX_FOUND_IDS", "MAX_GROUP_NAMES",
    "MAX_GROUP_ORDERS", "MAX_HEATMAPS", "MAX_INT64", "MAX_KEYBOARD_TEXTS", "MAX_LAST_VALUES", "MAX_LOGGED_KEYS",
    "MAX_QUERY_RESULTS", "MAX_QUERY_TERMS", "MAX_SAMPLE_TABLES", "MAX_SCATTERS", "MAX_SPARKLINES",
    "MAX_STEP_STRIPS", "MAX_TABLE_LAYOUTS", "MAX_TOKEN_COMMANDS", "MAX_WORST_SAMPLES", "cached",
    "get_current_process_id", "has_process_ended", "parse_boolean", "parse_choice", "parse_integer",
    "parse_multiline_text", "parse_text", "redact_secrets",
]  # fmt: skip
