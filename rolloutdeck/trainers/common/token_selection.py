"""Selects the groups whose token fields are stored: ROLLOUTDECK_TOKENS is `none`, `groups:K` or `all`."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutdeck.trainers.common import patching

DEFAULT_GROUPS = 8


@dataclass(frozen=True)
class TokenSelection:
    """`groups` complete groups per step, None for all. The choice depends only on `seed` and the step."""

    groups: int | None = DEFAULT_GROUPS
    seed: str = ""

    @classmethod
    def parse(cls, text: str, seed: str = "") -> TokenSelection:
        """Parses ROLLOUTDECK_TOKENS. An invalid value is the default and is logged once."""
        if text in ("", "none", "all"):
            return cls({"": DEFAULT_GROUPS, "none": 0, "all": None}[text], seed)
        if match := re.fullmatch(r"groups:(\d{1,9})", text):
            return cls(int(match.group(1)), seed)
        message = "ROLLOUTDECK_TOKENS is none, groups:K or all, not %r; groups:8 is used."
        patching.once_logger.log_once("tokens", message, text)
        return cls(DEFAULT_GROUPS, seed)

    def subtract(self, groups: int) -> TokenSelection:
        """Returns the selection that remains after `groups` groups were selected."""
        return self if self.groups is None else replace(self, groups=max(0, self.groups - groups))

    def select_rows(self, groups: Sequence[str], split: str, step: int) -> list[int]:
        """Returns the indices in `groups` (one group name per row) whose token fields are stored, in order."""
        if self.groups is None:
            return list(range(len(groups)))
        names = list(dict.fromkeys(groups))
        selected = set(names)
        if len(names) > self.groups:
            indices = random.Random(f"{self.seed}/{split}/{step}").sample(range(len(names)), self.groups)
            selected = {names[index] for index in indices}
        return [index for index, name in enumerate(groups) if name in selected]


class TokenBudget:
    """Applies a selection to steps whose rows arrive in several calls: it counts the groups of all calls of a step."""

    MAX_STEPS = 16  # the newest steps whose selected groups are remembered

    def __init__(self, selection: TokenSelection) -> None:
        self._selection = selection
        self._remaining: dict[tuple[str, int], TokenSelection] = {}

    def select_rows(self, groups: Sequence[str], split: str, step: int) -> list[int]:
        """Returns the indices in `groups` (one group name per row) whose token fields are stored, in order."""
        remaining = self._remaining.pop((split, step), self._selection)
        selected = remaining.select_rows(groups, split, step)
        self._remaining[split, step] = remaining.subtract(len({groups[index] for index in selected}))
        if len(self._remaining) > self.MAX_STEPS:
            del self._remaining[next(iter(self._remaining))]
        return selected
