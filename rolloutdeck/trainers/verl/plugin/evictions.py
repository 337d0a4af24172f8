"""V1's replay buffer: the trajectories that were generated and never trained on, counted by reason before they go.

verl counts prompts, and only evicted ones; here a session counts, as it does in the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method

COUNTS, REASON = "_rolloutdeck_left_out", "_rolloutdeck_reasons"
REASONS = ("stale", "filtered", "failed")  # the order of `_terminal_eviction_reasons`
SURPLUS = "surplus"


def patch(module: ModuleType) -> None:
    buffer: Any = module.ReplayBuffer
    wrap_method(buffer, "_evict_terminal_groups", evict)
    wrap_method(buffer, "_clear_groups", clear)


def evict(original: Callable[..., Any]) -> Callable[..., Any]:
    def _evict_terminal_groups(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(
            self,
            REASON,
            bind_arguments(original, (self, *args), kwargs).get("eviction_reasons", ())[: len(REASONS)],
        )
        try:
            return original(self, *args, **kwargs)
        finally:
            setattr(self, REASON, ())

    return _evict_terminal_groups


def clear(original: Callable[..., Any]) -> Callable[..., Any]:
    def _clear_groups(self: Any, *args: Any, **kwargs: Any) -> Any:
        told = bind_arguments(original, (self, *args), kwargs)
        if told.get("partition_id") == "train":
            count_evictions(self, self.partitions["train"], told["uids"])
        return original(self, *args, **kwargs)

    return _clear_groups


@catch_errors
def count_evictions(buffer: Any, keys: Iterable[str], uids: Iterable[str]) -> None:
    """Counts the sessions of these prompts. What is cleared without a reason was one more than the step needed."""
    reasons = dict(zip(REASONS, getattr(buffer, REASON, ()), strict=False))
    gone = set(uids)
    sessions = {key.rpartition("_")[0] for key in keys if key.split("_")[0] in gone}
    found = getattr(buffer, COUNTS, None)
    if found is None:
        found = Counter()
        setattr(buffer, COUNTS, found)
    for session in sessions:
        uid = session.split("_")[0]
        found[next((reason for reason, those in reasons.items() if uid in those), SURPLUS)] += 1


def take_eviction_counts(buffer: Any) -> dict[str, int]:
    """What was counted since the last step, by reason."""
    found: Counter[str] = getattr(buffer, COUNTS, None) or Counter()
    setattr(buffer, COUNTS, Counter())
    return dict(found)
