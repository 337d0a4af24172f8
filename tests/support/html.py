"""Compares HTML pages without regard to the line breaks of the templates."""

from __future__ import annotations

import re


def collapse_spaces(page: str) -> str:
    """Replaces white space by one space, and removes it next to tags."""
    return re.sub(r" ?(<[^>]*>) ?", r"\1", re.sub(r"\s+", " ", page))
