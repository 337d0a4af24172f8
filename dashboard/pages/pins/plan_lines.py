"""The lines of a plan: an entry each, with its preview and outcome. Neighbours that say the same fold to one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.pages.pins import pin_list
from dashboard.pages.pins.pin_list import PinRow
from rollouts.replay import EntryOutcome, EntryPreview

MIN_FOLDED_LINES = 4


@dataclass(frozen=True, slots=True)
class PlanLine:
    """An entry of the draft. `position` is its place there; `target` is what the user typed. `is_unreached`: the run
    ends before it."""

    position: int
    row: PinRow
    target: str
    step: int | None
    problem: str
    preview: EntryPreview | None
    is_unreached: bool = False

    @property
    def name(self) -> str:
        return pin_list.format_pin_name(self.row.pin)

    @property
    def outcome(self) -> EntryOutcome | None:
        return self.preview.outcome if self.preview else None

    @property
    def is_done(self) -> bool:
        """Whether the run has reported what happened; the preview is then in the past."""
        return bool(self.outcome and self.outcome.is_known)

    @property
    def flags(self) -> int:
        return self.row.step.flags if self.row.step else 0

    def is_followed_by(self, other: PlanLine) -> bool:
        """Whether the next line is the next step of the same run and says the same."""
        return (
            self.get_words() == other.get_words()
            and not (self.problem or other.problem)
            and self.step is not None
            and other.step == self.step + 1
            and other.row.pin.step == self.row.pin.step + 1
        )

    def get_words(self) -> tuple[Any, ...]:
        """What a folded line says for all its entries."""
        preview, outcome, pin = self.preview, self.outcome, self.row.pin
        return (
            pin.run_id, pin.attempt_id, pin.split, pin.step_kind, self.row.state.label,
            preview and preview.label, self.is_unreached,
            outcome and (outcome.state, outcome.reason, outcome.selection),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineGroup:
    """One line, or neighbours that fold to one."""

    lines: tuple[PlanLine, ...]

    @property
    def first(self) -> PlanLine:
        return self.lines[0]

    @property
    def last(self) -> PlanLine:
        return self.lines[-1]

    @property
    def is_folded(self) -> bool:
        return len(self.lines) > 1

    @property
    def flags(self) -> int:
        return sum(line.flags for line in self.lines)

    @property
    def reasons(self) -> str:
        """The reason of the first line; an ellipsis if the others name other steps."""
        reasons = list(dict.fromkeys(line.preview.reason for line in self.lines if line.preview))
        return "" if not reasons else reasons[0] + (" …" if len(reasons) > 1 else "")


def group_lines(lines: Iterable[PlanLine]) -> list[LineGroup]:
    runs: list[list[PlanLine]] = []
    for line in lines:
        if runs and runs[-1][-1].is_followed_by(line):
            runs[-1].append(line)
        else:
            runs.append([line])
    groups: list[LineGroup] = []
    for own in runs:
        parts = [own] if len(own) >= MIN_FOLDED_LINES else [[line] for line in own]
        groups += [LineGroup(tuple(part)) for part in parts]
    return groups


def count_reported(previews: Mapping[int, EntryPreview]) -> int:
    return sum(bool(preview.outcome and preview.outcome.is_known) for preview in previews.values())
