"""What the server accepts and keeps of a result and a label. It refuses a whole request for one value beyond it."""

from __future__ import annotations

import re

from rolloutdeck.protocol import MAX_RESULT_NUMBER

REFUSED_CHARS = re.compile("[\0\ud800-\udfff]")


def is_storable(number: float) -> bool:
    """Whether the server stores the number: not NaN, infinity or something larger than all scores."""
    return abs(number) < MAX_RESULT_NUMBER


def clean_text(text: str, max_chars: int) -> str:
    """Returns the start of the text, without NUL and unpaired surrogates, which no database stores."""
    return REFUSED_CHARS.sub("", text).strip()[:max_chars]
