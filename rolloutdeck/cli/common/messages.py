"""Sentences for the user, and where they are printed."""

from __future__ import annotations

import sys


def print_message(text: str) -> None:
    """Prints a message for the user to standard error. Standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def format_sentence(message: object) -> str:
    """Returns a text or an error's message with a capital first letter (except for a URL) and a final full stop."""
    text = str(message)
    return end_sentence(text if text.startswith("http") else text[:1].upper() + text[1:])


def end_sentence(text: str) -> str:
    """Returns a message of the server with a final full stop. Its first word may be a name, which keeps its case."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def format_count(count: int, noun: str) -> str:
    """Returns `1 file`, `2 files`, `1,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
