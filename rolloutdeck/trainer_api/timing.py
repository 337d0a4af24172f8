"""Which metrics of a trainer are the seconds of which phase of a step.

A metric that is listed is wall time of the step, not a sum over workers, and lies in no other listed metric. So the
phases of a step add up to its seconds, and what is left is `other`. A metric that covers two phases is
not divided: it is not listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

PHASES: Final = (
    "generation", "tool", "reward", "old_log_prob", "reference", "advantage", "update", "weight_sync", "evaluation",
    "checkpoint", "waiting", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TimingMetrics:
    """The metrics of one trainer.

    trainer: its name as people write it. total: names of the seconds of the whole step, the best first. phases: a
    metric -> its phase, one of `PHASES`. outside: phases that the total does not contain. queue_kinds: step kinds on
    which the generation timer measures how long the trainer waits for samples that others generate.
    checkpoint_after: metrics of which a run has one if it stores checkpoints after the step, outside of the total.
    late_total: a metric that a run has if its total is that of the step before; then no total is used.
    setup_line: the line that makes the trainer send its phases; "" if it always does, or if it is only in the docs.
    """

    trainer: str
    total: tuple[str, ...]
    phases: Mapping[str, str]
    outside: frozenset[str] = frozenset()
    queue_kinds: frozenset[str] = frozenset()
    checkpoint_after: frozenset[str] = frozenset()
    late_total: str = ""
    setup_line: str = ""

    def list_names(self, known: Collection[str]) -> list[str]:
        """Returns those of its metrics that a run has."""
        return [name for name in (*self.total, *self.phases) if name in known]

    def count_phases(self, known: Collection[str]) -> int:
        return sum(name in known for name in self.phases)

    def has_total(self, known: Collection[str]) -> bool:
        return any(name in known for name in self.total)


def map_phases(prefix: str, **names: str) -> dict[str, str]:
    """Returns {metric: phase} from a phase and its metrics: `map_phases("timing_s/", generation="gen generate_async")`.

    `prefix` is put before each metric. Metrics are separated by spaces.
    """
    return {prefix + name: phase for phase, text in names.items() for name in text.split()}
