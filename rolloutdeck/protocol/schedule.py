"""Computes which pin a step of a run replays, from the plan's action, its target steps and the step number.

With the targets 1..k, the actions are those of the trainers' rollout skip. The functions are pure: a repeated step,
or the first step after a resume, gets the same result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rolloutdeck.protocol import wire


def resolve_target(action: str, targets: Sequence[int], step: int) -> int | None:
    """Returns the target step whose pin `step` replays; None if the run generates, as without a plan.

    targets: the plan's target steps in any order. After the last target, `cache` generates, `repeat` starts again from
    the first target, and `repeat_last` repeats the last target. Raises ValueError if the action is unknown.
    """
    if action not in wire.PLAN_ACTIONS:
        raise ValueError(f"A plan's action is one of {', '.join(wire.PLAN_ACTIONS)}, not {str(action)[:40]!r}.")
    return _resolve_sorted(sorted(set(targets)), action, step)


def _resolve_sorted(ordered: Sequence[int], action: str, step: int) -> int | None:
    index = bisect_left(ordered, step)
    if index < len(ordered):
        return step if ordered[index] == step else None
    if not ordered or action == "cache":
        return None
    return ordered[-1] if action == "repeat_last" else ordered[(step - ordered[-1] - 1) % len(ordered)]


def resolve_targets(action: str, targets: Sequence[int], steps: Iterable[int]) -> list[tuple[int, int | None]]:
    """Returns (step, target or None) for each of `steps`. Raises ValueError if the action is unknown."""
    resolve_target(action, (), 0)  # raises for an unknown action even if there are no steps
    ordered = sorted(set(targets))
    return [(step, _resolve_sorted(ordered, action, step)) for step in steps]


def format_step_ranges(steps: Sequence[int]) -> str:
    """Returns `1-4, 7` for 1, 2, 3, 4, 7, with at most eight ranges."""
    ranges: list[list[int]] = []
    for step in sorted(set(steps)):
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:8]]
    return ", ".join(texts) + (", …" if len(ranges) > 8 else "")
