"""Findings: notes of users with evidence items, each a snapshot of a sample, a query result, charts or rates.

Depends on: charts, flags, live, metrics, projects, the query language and samples.
Invariant: a finding survives its runs. It is removed, never deleted.
"""

from rollouts.findings.blind import reviews_blind_queue, serialize_evidence
from rollouts.findings.charts import QUERY_PREFIX, snapshot_charts
from rollouts.findings.findings import (
    MAX_EVIDENCE_ITEMS,
    MAX_QUOTES,
    add_chart_evidence,
    add_query_evidence,
    add_sample_evidence,
    create_finding,
    move_evidence,
    remove_evidence,
    remove_finding,
    restore_finding,
    set_evidence_comment,
    store_evidence,
    store_sample_evidence,
    update_finding,
)
from rollouts.findings.snapshots import Quote, build_quote, find_quote, snapshot_query, snapshot_sample

__all__ = [
    "MAX_EVIDENCE_ITEMS", "MAX_QUOTES", "QUERY_PREFIX", "Quote", "add_chart_evidence", "add_query_evidence",
    "add_sample_evidence", "build_quote", "create_finding", "find_quote", "move_evidence", "remove_evidence",
    "remove_finding", "restore_finding", "reviews_blind_queue", "set_evidence_comment", "serialize_evidence",
    "snapshot_charts", "snapshot_query", "snapshot_sample", "store_evidence", "store_sample_evidence",
    "update_finding",
]  # fmt: skip
