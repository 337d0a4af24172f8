"""Numbers with a 95 % interval as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.cli.common import clean_line

# The server has longer sentences for its pages. Its JSON has only the keys.
REASONS = {
    "no-pairs": "no item has answers of two people",
    "one-item": "only one item has answers of two people",
    "one-value": "all answers are the same",
    "unequal-answers": "items have different numbers of answers",
    "not-nominal": "not a question with one choice",
    "free-text": "free text has no agreement",
    "no-marks": "nobody marked a range in an item of two people",
    "all-equal": "someone finds all responses equal",
    "no-answers": "no gold item was answered",
    "few-items": "fewer than 20 items have answers of two people",
    "rare-values": "nearly all answers are the same",
    "few-samples": "fewer than 20 labelled samples",
}


def format_change(change: Mapping[str, Any], *, is_clear: bool) -> str:
    """Returns `0.32 -> 0.03, -0.29 [-0.36, -0.22] *`; the star says that the interval excludes 0."""
    sides = ["-" if side["value"] is None else f"{side['value']:.3f}" for side in (change["first"], change["second"])]
    difference = change["change"]
    text = " -> ".join(sides)
    if difference["value"] is None:
        return f"{text} ({format_reason(difference['reason'])})"
    text += f", {difference['value']:+.2f}"
    if difference["low"] is not None:
        text += f" [{difference['low']:+.2f}, {difference['high']:+.2f}]"
    return f"{text} *" if is_clear else text


def format_estimate(estimate: Mapping[str, Any]) -> str:
    """Returns `0.74 [0.61, 0.85]`, or the reason why there is no number or no interval."""
    if estimate["value"] is None:
        return f"- ({format_reason(estimate['reason'])})"
    if estimate["low"] is None:
        return f"{estimate['value']:.2f} ({format_reason(estimate['reason'])})"
    return f"{estimate['value']:.2f} [{estimate['low']:.2f}, {estimate['high']:.2f}]"


def format_reason(reason: str | None) -> str:
    """Why there is no number or no interval. A newer server may have reasons that this version does not know."""
    return REASONS.get(reason, clean_line(reason)) if reason else "not known"
