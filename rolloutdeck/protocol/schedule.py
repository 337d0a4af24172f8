"""Which pin a step of a run replays: one pure function of the plan's action, its targets and the step.

With targets 1..k the actions are the three of the rollout skip that users of trainers know. A step that is asked twice,
or first after a resume, gets the same answer: nothing is counted, no history is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rolloutdeck.protocol import wire


def resolve_target(action: str, targets: Sequence[int], step: int) -> int | None:
    """The target whose pin `step` replays; None where the run generates, and records, as without a plan.

    `targets` are the plan's target steps in any order. Past the last one `cache` generates, `repeat` goes round the
    targets from the first, `repeat_last` stays at the last. Raises ValueError for an unknown action.
    """
    if action not in wire.PLAN_ACTIONS:
        raise ValueError(f"The action of a plan is one of {', '.join(wire.PLAN_ACTIONS)}, not {str(action)[:40]!r}.")
    return _among(sorted(set(targets)), action, step)


def _among(ordered: Sequence[int], action: str, step: int) -> int | None:
    place = bisect_left(ordered, step)
    if place < len(ordered):
        return step if ordered[place] == step else None
    if not ordered or action == "cache":
        return None
    return ordered[-1] if action == "repeat_last" else ordered[(step - ordered[-1] - 1) % len(ordered)]


def resolve_targets(action: str, targets: Sequence[int], steps: Iterable[int]) -> list[tuple[int, int | None]]:
    """What a run would do: (step, target or None) for each of `steps`."""
    resolve_target(action, (), 0)  # an unknown action is one whatever the steps are
    ordered = sorted(set(targets))
    return [(step, _among(ordered, action, step)) for step in steps]


def format_step_ranges(steps: Sequence[int]) -> str:
    """`1-4, 7` for 1, 2, 3, 4, 7; shortened after eight ranges."""
    parts: list[list[int]] = []
    for step in sorted(set(steps)):
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts[:8]]
    return ", ".join(shown) + (", …" if len(parts) > 8 else "")
