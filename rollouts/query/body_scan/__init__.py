"""Scans the sample bodies: for the terms about texts and logged keys, and for the keys that a run logged.

Depends on: the syntax tree and the grammar of queries, samples and storage.
Invariant: every scan has limits of time and memory, and ends when its client leaves.
"""

from rollouts.query.body_scan.logged_key import LoggedKey
from rollouts.query.body_scan.matching import (
    TimeBudget,
    find_matching_texts,
    find_regex_error,
    help_scan,
    scan_bodies,
)
from rollouts.query.body_scan.newest_keys import (
    count_logged_values,
    find_logged_keys,
    is_count_complete,
    list_trainer_columns,
)
from rollouts.query.body_scan.parts import has_several_bodies
from rollouts.query.body_scan.request import ScanRequest, get_scan_request, start_scan_request
from rollouts.query.body_scan.scanner import collect_frame
from rollouts.query.body_scan.scanner_process import read_memory

__all__ = [
    "LoggedKey", "ScanRequest", "TimeBudget", "collect_frame", "count_logged_values", "find_logged_keys",
    "find_matching_texts", "find_regex_error", "get_scan_request", "has_several_bodies", "help_scan",
    "is_count_complete", "list_trainer_columns", "read_memory", "scan_bodies", "start_scan_request",
]  # fmt: skip
