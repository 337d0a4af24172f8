"""Numbers with a 95 % interval as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.cli.samples import remove_control_characters


def format_change(change: Mapping[str, Any], *, is_clear: bool) -> str:
    """Returns `0.32 -> 0.03, -0.29 [-0.36, -0.22] *`; the star says that the interval excludes 0."""
    sides = ["-" if side["value"] is None else f"{side['value']:.3f}" for side in (change["first"], change["second"])]
    difference = change["change"]
    text = " -> ".join(sides)
    if difference["value"] is None:
        return f"{text} ({difference['reason'] or 'not known'})"
    text += f", {difference['value']:+.2f}"
    if difference["low"] is not None:
        text += f" [{difference['low']:+.2f}, {difference['high']:+.2f}]"
    return f"{text} *" if is_clear else text


def format_estimate(estimate: Mapping[str, Any]) -> str:
    """Returns `0.74 [0.61, 0.85]`, or the reason why there is no number or no interval."""
    if estimate["value"] is None:
        return f"- ({estimate['reason']})"
    interval = (
        f"({estimate['reason']})" if estimate["low"] is None else f"[{estimate['low']:.2f}, {estimate['high']:.2f}]"
    )
    return f"{estimate['value']:.2f} {interval}"


def clean(text: object) -> str:
    return remove_control_characters(str(text))
