"""Finds a text that a user selected on a page in the recorded text."""

from __future__ import annotations

import re
from typing import Final

# All but white space and the characters that pages show by name: a browser's selection may differ in these.
VISIBLE: Final = re.compile(r"[^\s\x00-\x1f\x7f\x85\u200b\u202a-\u202e\u2060\u2066-\u2069\ufeff]")


def find_passage(text: str, selected: str, near: int = 0) -> tuple[int, int] | None:
    """Returns start and end of the occurrence nearest to `near`, in characters; None if there is none. White space and
    control characters may differ, as they do in a browser."""
    spans = find_exact_spans(text, selected.strip()) or find_visible_spans(text, selected)
    return min(spans, key=lambda span: abs(span[0] - near)) if spans else None


def find_exact_spans(text: str, selected: str) -> list[tuple[int, int]]:
    return [matched.span() for matched in re.finditer(re.escape(selected), text)] if selected else []


def find_visible_spans(text: str, selected: str) -> list[tuple[int, int]]:
    """Returns the spans that have the same visible characters as `selected`."""
    visible = "".join(VISIBLE.findall(selected))
    if not visible:
        return []
    positions = [matched.start() for matched in VISIBLE.finditer(text)]
    spans = find_exact_spans("".join(text[at] for at in positions), visible)
    return [(positions[first], positions[last - 1] + 1) for first, last in spans]
