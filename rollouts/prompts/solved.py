"""When a prompt counts as solved, wherever it is said: on its history, on the map of prompts, in a comparison."""

from __future__ import annotations


def solved(right: int, judged: int) -> bool | None:
    """Are at least half of its judged answers right? None where none was judged."""
    return 2 * right >= judged if judged else None
