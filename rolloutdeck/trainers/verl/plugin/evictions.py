"""Counts the trajectories that V1's replay buffer evicts without training on them, by reason.

verl counts prompts, and only evicted ones; here sessions are counted, as in the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method

COUNTS_ATTRIBUTE, REASONS_ATTRIBUTE = "_rolloutdeck_left_out", "_rolloutdeck_reasons"
REASONS = ("stale", "filtered", "failed")  # the order of `_terminal_eviction_reasons`
SURPLUS = "surplus"


def patch(module: ModuleType) -> None:
    buffer: Any = module.ReplayBuffer
    wrap_method(buffer, "_evict_terminal_groups", wrap_evict)
    wrap_method(buffer, "_clear_groups", wrap_clear)


def wrap_evict(original: Callable[..., Any]) -> Callable[..., Any]:
    def _evict_terminal_groups(self: Any, *args: Any, **kwargs: Any) -> Any:
        reasons = bind_arguments(original, (self, *args), kwargs).get("eviction_reasons", ())
        setattr(self, REASONS_ATTRIBUTE, reasons)
        try:
            return original(self, *args, **kwargs)
        finally:
            setattr(self, REASONS_ATTRIBUTE, ())

    return _evict_terminal_groups


def wrap_clear(original: Callable[..., Any]) -> Callable[..., Any]:
    def _clear_groups(self: Any, *args: Any, **kwargs: Any) -> Any:
        count_cleared_groups(self, bind_arguments(original, (self, *args), kwargs))
        return original(self, *args, **kwargs)

    return _clear_groups


@catch_errors
def count_cleared_groups(buffer: Any, arguments: Mapping[str, Any]) -> None:
    if arguments.get("partition_id") == "train":
        count_evictions(buffer, buffer.partitions["train"], arguments["uids"])


def count_evictions(buffer: Any, keys: Iterable[str], uids: Iterable[str]) -> None:
    """Counts the sessions of these prompts. Sessions cleared without a reason were more than the step needed."""
    reasons = dict(zip(REASONS, getattr(buffer, REASONS_ATTRIBUTE, None) or (), strict=False))
    evicted = set(uids)
    sessions = {key.rpartition("_")[0] for key in keys if key.split("_")[0] in evicted}
    counts = getattr(buffer, COUNTS_ATTRIBUTE, None)
    if counts is None:
        counts = Counter()
        setattr(buffer, COUNTS_ATTRIBUTE, counts)
    for session in sessions:
        uid = session.split("_")[0]
        counts[next((reason for reason, evicted_uids in reasons.items() if uid in evicted_uids), SURPLUS)] += 1


def take_eviction_counts(buffer: Any) -> dict[str, int]:
    """Returns the counts since the last step, by reason, and resets them."""
    counts: Counter[str] = getattr(buffer, COUNTS_ATTRIBUTE, None) or Counter()
    setattr(buffer, COUNTS_ATTRIBUTE, Counter())
    return dict(counts)
