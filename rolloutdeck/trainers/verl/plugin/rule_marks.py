"""The marks of a trained batch: for each row the keys of the rules that selected it, as the recorded rows have them."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutdeck.protocol import GUIDANCE_FIELD
from rolloutdeck.trainers.verl.plugin.rows import VerlRow


class RuleMarks:
    """The marks of the latest step, which may have several batches. Rows have the keys of verl, in V0 their uids."""

    def __init__(self) -> None:
        self._step, self._row_count, self._has_marks = -1, 0, False
        self._last: tuple[list[str], list[str | None]] = ([], [])  # keys and marks of the latest batch
        self._by_key: dict[str, str | None] = {}

    def add(self, step: int, keys: Sequence[str], marks: Sequence[str | None]) -> None:
        if step != self._step:
            self._step, self._row_count, self._has_marks, self._by_key = step, 0, False, {}
        self._last = list(keys), list(marks)
        self._row_count += len(keys)
        self._has_marks = self._has_marks or any(marks)
        self._by_key.update(zip(keys, marks, strict=True))

    def find(self, step: int, keys: Sequence[str]) -> list[str | None]:
        """Returns the mark of each row of a trained batch; [] if no rule selected a row of the step, or if rows that
        share a key are in another order than they were."""
        if step != self._step or not self._has_marks:
            return []
        last_keys, last_marks = self._last
        if list(keys) == last_keys:
            return last_marks
        return [self._by_key.get(key) for key in keys] if len(self._by_key) == self._row_count else []


def add_marks(target: Sequence[VerlRow], marks: Sequence[str | None]) -> None:
    for row, mark in zip(target, marks, strict=False):
        if mark:
            row.setdefault(GUIDANCE_FIELD, mark)
