"""States of labels: what an action stores, so that it can be undone, and what the history keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rollouts.models import Label, LabelAction, LabelChange

UPDATED_FIELDS: Final = (
    "value", "number", "answer", "rationale", "rubric", "rubric_number", "start", "end", "user", "withdrawn_at",
    "updated_at",
)  # fmt: skip


class LabelState(NamedTuple):
    """What of a label can change. `rubric` is an id; `rubric_number` is that of a version which this server lacks."""

    value: Any
    rationale: str = ""
    withdrawn: bool = False
    start: int | None = None
    end: int | None = None
    rubric: int | None = None
    answer: str = ""
    rubric_number: int | None = None

    @classmethod
    def of_label(cls, label: Label) -> LabelState:
        withdrawn = label.withdrawn_at is not None
        place = (label.start, label.end, label.rubric_id, label.answer, label.rubric_number)
        return cls(label.value, label.rationale, withdrawn, *place)

    @classmethod
    def from_json(cls, values: list[Any]) -> LabelState:
        """Reads a stored state. Earlier versions stored [label, text, withdrawn] of a flag."""
        if len(values) > 3:
            return cls(*values)
        label, text, withdrawn = values
        return cls(label, text, withdrawn, answer=f" {label} ")


@dataclass(frozen=True, slots=True)
class StateChange:
    """A label that an action changes: its state and its `updated_at` before, both None if it is new, and after.
    `user_before` had stored it."""

    label: Label
    before: LabelState | None
    updated_at_before: str | None
    after: LabelState
    user_before: int


class StoredChange(NamedTuple):
    """A `StateChange` as an action stores it. `updated_at` is that of the label after the action. `user_before` is None
    if the user is the same, and of earlier versions."""

    label: int
    updated_at: str
    before: LabelState | None
    updated_at_before: str | None
    after: LabelState
    user_before: int | None = None


def set_state(label: Label, state: LabelState, at: datetime) -> None:
    label.value, label.rationale, label.answer = state.value, state.rationale, state.answer
    label.start, label.end = state.start, state.end
    label.rubric_id, label.rubric_number = state.rubric, state.rubric_number
    label.number = get_number(state.value)
    label.withdrawn_at = at if state.withdrawn else None
    label.updated_at = at


def get_number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool | int | float) else None


def format_updated_at(label: Label) -> str:
    """Returns the time of the last change in ISO format, in UTC, with microseconds."""
    return label.updated_at.astimezone(UTC).isoformat()


def build_changes_json(changes: Iterable[StateChange]) -> dict[str, Any]:
    """Returns `LabelAction.before`. Each state is stored once: a bulk action has one for thousands of labels."""
    states: list[LabelState] = []
    positions: dict[str, int] = {}

    def find_position(state: LabelState) -> int:
        key = repr(state)
        if key not in positions:
            positions[key] = len(states)
            states.append(state)
        return positions[key]

    rows = [
        [
            change.label.pk,
            format_updated_at(change.label),
            None if change.before is None else find_position(change.before),
            change.updated_at_before,
            find_position(change.after),
            *([change.user_before] if change.user_before != change.label.user_id else []),
        ]
        for change in changes
    ]
    return {"was": rows, "states": [list(state) for state in states]}


def read_changes(action: LabelAction) -> list[StoredChange]:
    """Returns the changes of an action. Earlier versions stored states in place, and one state after the action."""
    rows = action.before["was"]
    if "states" not in action.before:
        after = LabelState.from_json(action.before["left"])
        return [
            StoredChange(label, updated_at, LabelState.from_json(before) if before else None, updated_at_before, after)
            for label, updated_at, before, updated_at_before in rows
        ]
    states = [LabelState.from_json(values) for values in action.before["states"]]
    return [
        StoredChange(label, at, None if before is None else states[before], at_before, states[after], *user_before)
        for label, at, before, at_before, after, *user_before in rows
    ]


def remove_labels_from_action(before: dict[str, Any], labels: set[int]) -> dict[str, Any]:
    """Returns `LabelAction.before` without these labels and without the states that only they had."""
    rows = [row for row in before["was"] if row[0] not in labels]
    if "states" not in before:
        return {**before, "was": rows}
    used = sorted({position for row in rows for position in (row[2], row[4]) if position is not None})
    moved = {old: new for new, old in enumerate(used)}
    rows = [[pk, at, moved.get(old), old_at, moved[new], *user] for pk, at, old, old_at, new, *user in rows]
    return {"was": rows, "states": [before["states"][position] for position in used]}


def build_history_row(label: Label, state: LabelState, at: datetime, *, undone: bool = False) -> LabelChange:
    """Returns the row for a state that is about to be replaced. `at`: when it was stored."""
    return LabelChange(
        label=label, value=state.value, rationale=state.rationale, rubric_id=state.rubric,
        rubric_number=state.rubric_number, start=state.start, end=state.end, withdrawn=state.withdrawn,
        undone=undone, at=at,
    )  # fmt: skip
