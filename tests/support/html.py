"""Pages as a reader of the markup sees them, whatever the line breaks of the templates."""

from __future__ import annotations

import re


def collapse_spaces(page: str) -> str:
    """One space for each run of white space, and none next to a tag."""
    return re.sub(r" ?(<[^>]*>) ?", r"\1", re.sub(r"\s+", " ", page))
