"""Texts of other people, made safe to print in a terminal."""

from __future__ import annotations

import unicodedata

_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def remove_control_characters(text: str) -> str:
    """Replaces control characters, which could overwrite the terminal or change the text direction, by U+FFFD.

    Joiners inside emoji and scripts, line breaks and tabs are not changed.
    """
    return _replace_controls(text, "\n\t")


def clean_line(text: object) -> str:
    """Returns the text for a place inside of a line: line breaks and tabs are replaced too."""
    return _replace_controls(str(text), "")


def _replace_controls(text: str, allowed: str) -> str:
    def is_control(char: str) -> bool:
        return unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTION_CONTROLS

    return "".join("\N{REPLACEMENT CHARACTER}" if is_control(c) and c not in allowed else c for c in text)
