"""The entries of a plan as text: what is expected at each target step, and what a run did there."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutdeck.cli.common import clean_line
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.replay import PlanEntry

STATES_BY_READINESS = ("unsafe", "gone", "waiting", "uploading", "ready")  # the least ready artifact first
UNKNOWN = "unknown: depends on the prompts"


def has_outcome(entry: PlanEntry) -> bool:
    """Whether a run reported what it did with the entry."""
    return entry.outcome.get("state") in ("replayed", "refused", "generated")


def describe_preview(entry: PlanEntry, *, has_run: bool) -> tuple[str, str]:
    """Returns what is expected and why, in the words of the server, which the Pins page shows too."""
    label, reason = str(entry.preview.get("label", "")), str(entry.preview.get("reason", ""))
    if label:
        return label, reason
    # an older server
    return "will generate" if has_run and entry.is_incompatible else UNKNOWN, entry.incompatibilities if has_run else ""


def print_entries(entries: Sequence[PlanEntry], *, has_run: bool) -> None:
    """Prints the entries as a table. Neighbours that differ only in the number of the step share a line."""
    rows: list[tuple[str, ...]] = [("step", "pin id", "replays", "files", "preview", "outcome", "why")]
    rows += [_build_row(group, has_run=has_run) for group in _group_entries(entries, has_run=has_run)]
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    for row in rows:
        print("  ".join(f"{row[column]:<{widths[column]}}" for column in columns).rstrip())


def _group_entries(entries: Sequence[PlanEntry], *, has_run: bool) -> list[list[PlanEntry]]:
    groups: list[list[PlanEntry]] = []
    for entry in entries:
        last = groups[-1][-1] if groups else None
        if last and _is_next(last, entry) and _describe(last, has_run=has_run) == _describe(entry, has_run=has_run):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _is_next(before: PlanEntry, after: PlanEntry) -> bool:
    """Whether the second entry replays the next step of the same run at the next target step."""
    steps = [entry.source.get("step") for entry in (before, after)]
    same = all(before.source.get(name) == after.source.get(name) for name in ("run", "name", "step_kind"))
    is_next_source = isinstance(steps[0], int) and steps[1] == steps[0] + 1
    return same and is_next_source and after.target_step == before.target_step + 1


def _describe(entry: PlanEntry, *, has_run: bool) -> tuple[str, str, str, str]:
    """Returns state of the files, preview, outcome, and the reason of the outcome."""
    states = {artifact.state for artifact in entry.artifacts}
    files = next((state for state in STATES_BY_READINESS if state in states), "none")
    label = describe_preview(entry, has_run=has_run)[0]
    if has_outcome(entry):
        parts = [str(entry.outcome.get(name) or "") for name in ("reason", "selection")]
        return files, f"was: {label}", str(entry.outcome.get("label", "")), "; ".join(filter(None, parts))
    return files, label, str(entry.outcome.get("label", "")), ""


def _build_row(group: Sequence[PlanEntry], *, has_run: bool) -> tuple[str, ...]:
    first = group[0]
    files, preview, outcome, reason = _describe(first, has_run=has_run)
    reasons = {describe_preview(entry, has_run=has_run)[1]: None for entry in group}
    if not has_outcome(first):
        reason = next(iter(reasons)) + (" …" if len(reasons) > 1 else "")
    source = f"step {first.source.get('step')}"
    if len(group) > 1:
        source = f"steps {first.source.get('step')}-{group[-1].source.get('step')}"
    steps = format_step_ranges([entry.target_step for entry in group])
    pins = format_step_ranges(sorted(entry.pin for entry in group))
    cells = (steps, pins, f"{source} of {first.source.get('name', '')}", files, preview, outcome, reason)
    return tuple(clean_line(cell) for cell in cells)
