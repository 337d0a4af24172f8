"""Finds the words of a page that are not marked for translation."""

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

OPEN_MARK, CLOSE_MARK = "⟦", "⟧"
SHOWN_ATTRIBUTES = ("title", "aria-label", "aria-description", "placeholder", "alt", "label", "data-does")
# Elements with texts of models and programs, or names of keys.
UNTRANSLATED_TAGS = {"script", "style", "pre", "code", "kbd", "textarea"}
UNTRANSLATED_CLASSES = {"mono", "tail", "every"}  # classes: text of models, and the table of all that was recorded
VOID_TAGS = {"meta", "link", "input", "br", "img", "hr", "wbr", "source", "col", "area", "base", "embed"}
WORD = re.compile(r"[A-Za-z]{2,}")


@contextmanager
def mark_translations() -> Iterator[None]:
    """Puts every text from the Chinese catalogue between ⟦ and ⟧, also texts that are rendered once and cached."""
    clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gettext", "ngettext", "pgettext", "npgettext"):
            patch.setattr(translation._trans, name, add_marks(getattr(translation._trans, name)))
        yield
    clear_caches()


def add_marks(real: Any) -> Any:
    def translate(*messages: Any) -> str:
        message = real(*messages)
        if translation.get_language() == "en" or message in messages:
            return str(message)
        with_marks = f"{OPEN_MARK}{message}{CLOSE_MARK}"
        return SafeString(with_marks) if isinstance(message, SafeData) else with_marks

    return translate


class PageTexts(HTMLParser):
    """`rest` is what a page shows outside ⟦ and ⟧: texts of elements, and of attributes that users see or hear."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rest: list[str] = []
        self.depth = 0
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        seen = [values[name] for name in SHOWN_ATTRIBUTES if name in values]
        seen += [values.get("value", "")] if values.get("type") in ("submit", "button") else []
        if self.depth == 0 and not self.is_excluded():
            self.rest += [words for value in seen for words in self.find_unmarked(value)[0]]

        if tag not in VOID_TAGS:
            written = tag in UNTRANSLATED_TAGS or UNTRANSLATED_CLASSES.intersection(values.get("class", "").split())
            self.inside.append(f"!{tag}" if written else tag)

    def is_excluded(self) -> bool:
        return any(item.startswith("!") for item in self.inside)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop().removeprefix("!") != tag:
            pass

    def handle_data(self, data: str) -> None:
        result, self.depth = self.find_unmarked(data, self.depth)
        if not self.is_excluded():
            self.rest += result

    @staticmethod
    def find_unmarked(text: str, depth: int = 0) -> tuple[list[str], int]:
        matches = []
        for part in re.split(f"([{OPEN_MARK}{CLOSE_MARK}])", text):
            if part in (OPEN_MARK, CLOSE_MARK):
                depth += 1 if part == OPEN_MARK else -1
            elif depth == 0 and WORD.search(part):
                matches.append(" ".join(part.split()))
        return matches, depth


def find_untranslated(page: str, allowed: re.Pattern[str]) -> list[str]:
    """Texts of the page that are neither translated nor allowed names."""
    return [message for message in PageTexts(page).rest if WORD.search(allowed.sub(" ", message))]
