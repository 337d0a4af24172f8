"""verl's files: generations as JSONL, batches that a pin needs, and lines of metrics.

Depends on: samples, the readers of `rollouts.formats`, the batches of `rolloutdeck.safe_pickle`.
Invariant: rows that only fill a batch are skipped and counted, never shown as samples.
"""

from rollouts.formats.verl import batch, jsonl, metrics

__all__ = ["batch", "jsonl", "metrics"]
