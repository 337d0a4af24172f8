"""ROLL's files: rollouts as a line of columns with texts, and saved batches of the same rows with tokens.

Depends on: samples, the readers of `rollouts.formats`, the batches of `rolloutdeck.safe_pickle`.
Invariant: a batch adds no samples to a step that has rollouts; its rows are merged by group, in order.
"""

from rollouts.formats.roll import jsonl, mock

__all__ = ["jsonl", "mock"]
