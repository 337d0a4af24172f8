"""Reads the source files of gettext's catalogues."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

PLACEHOLDER = re.compile(r"%\(\w+\)s|%%|\{\w*\}|</?\w+(?: [^>]*)?>")


@dataclass(frozen=True)
class Entry:
    """A text with its plural (empty without one), and its translations: one in Chinese, which has no plural."""

    text: str
    plural: str
    translations: tuple[str, ...]
    fuzzy: bool

    def placeholders_differ(self) -> bool:
        """Whether the placeholders and elements of a translation differ from those of its text."""
        expected = sorted(PLACEHOLDER.findall(self.plural or self.text))
        return any(sorted(PLACEHOLDER.findall(message)) != expected for message in self.translations)


def read_entries(path: Path) -> list[Entry]:
    """All entries of a .po file, except the header and those that are no longer used."""
    matches = [parse_entry(block) for block in path.read_text().split("\n\n")]
    return [item for item in matches if item and item.text]


def parse_entry(block: str) -> Entry | None:
    values: dict[str, str] = {}
    at = ""
    for line in block.splitlines():
        if line.startswith("msg"):
            at, _, rest = line.partition(" ")
            values[at] = ast.literal_eval(rest)
        elif line.startswith('"'):
            values[at] += ast.literal_eval(line)
    if "msgid" not in values:
        return None
    message = tuple(value for name, value in values.items() if name.startswith("msgstr"))
    return Entry(values["msgid"], values.get("msgid_plural", ""), message, "#, fuzzy" in block)
