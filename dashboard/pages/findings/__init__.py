"""Findings, their evidence items and the form that adds one. Start in `views.py`, then `presenter.py`.

Depends on: `dashboard.pages.common`; findings, metrics, samples and storage.
Invariant: an evidence item shows its snapshot, not what the sample or the query shows now.
"""

from dashboard.pages.findings.presenter import (
    PresentedItem,
    build_evidence_items,
    describe_chart,
    describe_sample,
    describe_score,
)
from dashboard.pages.findings.rates import build_rates_query, present_rates
from dashboard.pages.findings.svg_chart import format_short_number

__all__ = [
    "PresentedItem", "build_evidence_items", "build_rates_query", "describe_chart", "describe_sample",
    "describe_score", "format_short_number", "present_rates",
]  # fmt: skip
