"""Exports: samples and labels as tables, and as data for SFT, DPO, KTO and reward models, with a card.

Depends on: the statistics of agreement, labels, queues' decisions and samples.
Invariant: the same query gives the same bytes; prompts of an evaluation are never training data; what is left out is
counted on the card.
"""

from rollouts.exports.archive import Export, stream_archive
from rollouts.exports.options import FORMATS, FORMS, LAYOUTS, PAIRS, SIGNALS, TABLES, ExportOptions, parse_options

__all__ = [
    "Export", "ExportOptions", "FORMATS", "FORMS", "LAYOUTS", "PAIRS", "SIGNALS", "TABLES", "parse_options",
    "stream_archive",
]  # fmt: skip
