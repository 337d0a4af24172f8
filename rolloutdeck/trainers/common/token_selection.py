"""Of which generations the token fields are kept: ROLLOUTDECK_TOKENS is `none`, `groups:K` or `all`."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutdeck.trainers.common import patching

DEFAULT = 8


@dataclass(frozen=True)
class TokenSelection:
    """`groups` whole groups a step, None for all. The choice follows from `seed` and the step alone."""

    groups: int | None = DEFAULT
    seed: str = ""

    @classmethod
    def read(cls, told: str, seed: str = "") -> TokenSelection:
        """Anything else than the three words is the default, said once."""
        if told in ("", "none", "all"):
            return cls({"": DEFAULT, "none": 0, "all": None}[told], seed)
        if found := re.fullmatch(r"groups:(\d{1,9})", told):
            return cls(int(found.group(1)), seed)
        patching.once_logger.log_once(
            "tokens", "ROLLOUTDECK_TOKENS is none, groups:K or all, not %r; it is groups:8 now.", told
        )
        return cls(DEFAULT, seed)

    def less(self, groups: int) -> TokenSelection:
        """What is left of it when so many groups were kept."""
        return self if self.groups is None else replace(self, groups=max(0, self.groups - groups))

    def rows(self, groups: Sequence[str], split: str, step: int) -> list[int]:
        """The places in `groups` (a group's name per row) whose tokens are kept, in order."""
        if self.groups is None:
            return list(range(len(groups)))
        names = list(dict.fromkeys(groups))
        chosen = set(names)
        if len(names) > self.groups:
            places = random.Random(f"{self.seed}/{split}/{step}").sample(range(len(names)), self.groups)
            chosen = {names[place] for place in places}
        return [place for place, name in enumerate(groups) if name in chosen]
