"""Helpers that know no table: validation, secret redaction, caches, freed memory, process ids, times, equality of
numbers and of values of configurations, the version.

Depends on: the exceptions in `rollouts.errors`.
Invariant: nothing here reads the database.
"""

from rollouts.lib.cache import (
    Cache,
    CacheSize,
    NewestCache,
    cached,
    cached_by_key,
    cached_newest,
    clear_all_processes,
    clear_caches,
    clear_outdated,
)
from rollouts.lib.clock import ClockWatch
from rollouts.lib.config_values import MISSING, are_equal_config_values, flatten_config, normalize_config_value
from rollouts.lib.free_memory import release_free_memory, start_memory_release
from rollouts.lib.process_id import get_current_process_id, has_process_ended
from rollouts.lib.redaction import make_storable, redact_command, redact_secrets, redact_text, replace_unstorable
from rollouts.lib.times import has_passed
from rollouts.lib.tolerance import compute_tolerance
from rollouts.lib.validation import (
    MAX_INT64,
    parse_boolean,
    parse_choice,
    parse_integer,
    parse_multiline_text,
    parse_text,
)
from rollouts.lib.version import find_unknown_migrations

__all__ = [
    "MAX_INT64", "MISSING", "Cache", "CacheSize", "ClockWatch", "NewestCache", "are_equal_config_values",
    "cached", "cached_by_key", "cached_newest", "clear_all_processes", "clear_caches", "clear_outdated",
    "compute_tolerance", "find_unknown_migrations", "flatten_config", "get_current_process_id", "has_passed",
    "has_process_ended", "make_storable", "normalize_config_value", "parse_boolean", "parse_choice",
    "parse_integer", "parse_multiline_text", "parse_text", "redact_command", "redact_secrets", "redact_text",
    "release_free_memory", "replace_unstorable", "start_memory_release",
]  # fmt: skip
