"""The words that a page shows, and those of them that no translation can reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import pytest
from django.utils import translation
from django.utils.safestring import SafeData, SafeString

from rollouts.lib import clear_caches

OPEN, CLOSE = "⟦", "⟧"
SHOWN = ("title", "aria-label", "aria-description", "placeholder", "alt", "label", "data-does")
# What is in these was written by a model, a program or the keyboard's maker.
APART = {"script", "style", "pre", "code", "kbd", "textarea"}
WRITTEN = {"mono", "tail", "every"}  # classes: text of models, and the table of all that was recorded
VOID = {"meta", "link", "input", "br", "img", "hr", "wbr", "source", "col", "area", "base", "embed"}
WORD = re.compile(r"[A-Za-z]{2,}")


@contextmanager
def marked() -> Iterator[None]:
    """Every text that comes from the Chinese catalogue stands between ⟦ and ⟧, also what is drawn once and kept."""
    clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gettext", "ngettext", "pgettext", "npgettext"):
            patch.setattr(translation._trans, name, fenced(getattr(translation._trans, name)))
        yield
    clear_caches()


def fenced(real: Any) -> Any:
    def asked(*messages: Any) -> str:
        message = real(*messages)
        if translation.get_language() == "en" or message in messages:
            return str(message)
        between = f"{OPEN}{message}{CLOSE}"
        return SafeString(between) if isinstance(message, SafeData) else between

    return asked


class Shown(HTMLParser):
    """`rest` is what a page shows outside ⟦ and ⟧: texts of elements, and of attributes that are read out or seen."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rest: list[str] = []
        self.depth = 0
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        seen = [values[name] for name in SHOWN if name in values]
        seen += [values.get("value", "")] if values.get("type") in ("submit", "button") else []
        if self.depth == 0 and not self.apart():
            self.rest += [outside for value in seen for outside in self.outside(value)[0]]

        if tag not in VOID:
            written = tag in APART or WRITTEN.intersection(values.get("class", "").split())
            self.inside.append(f"!{tag}" if written else tag)

    def apart(self) -> bool:
        return any(item.startswith("!") for item in self.inside)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop().removeprefix("!") != tag:
            pass

    def handle_data(self, data: str) -> None:
        result, self.depth = self.outside(data, self.depth)
        if not self.apart():
            self.rest += result

    @staticmethod
    def outside(text: str, depth: int = 0) -> tuple[list[str], int]:
        matches = []
        for part in re.split(f"([{OPEN}{CLOSE}])", text):
            if part in (OPEN, CLOSE):
                depth += 1 if part == OPEN else -1
            elif depth == 0 and WORD.search(part):
                matches.append(" ".join(part.split()))
        return matches, depth


def unmarked(page: str, allowed: re.Pattern[str]) -> list[str]:
    """Words of the page that are neither translated nor names that stay as they are."""
    return [message for message in Shown(page).rest if WORD.search(allowed.sub(" ", message))]
