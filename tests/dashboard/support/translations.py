"""gettext's catalogues, read as text."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

HOLE = re.compile(r"%\(\w+\)s|%%|\{\w*\}|</?\w+(?: [^>]*)?>")


@dataclass(frozen=True)
class Entry:
    """A text with its plural (empty without one), and its translations: one in Chinese, which has no plural."""

    text: str
    plural: str
    translations: tuple[str, ...]
    fuzzy: bool

    def holes_differ(self) -> bool:
        """Whether a translation lacks or invents a hole or an element of the text that it stands for."""
        expected = sorted(HOLE.findall(self.plural or self.text))
        return any(sorted(HOLE.findall(message)) != expected for message in self.translations)


def entries(path: Path) -> list[Entry]:
    """All of a .po file but its header and what it no longer uses."""
    matches = [entry(block) for block in path.read_text().split("\n\n")]
    return [item for item in matches if item and item.text]


def entry(block: str) -> Entry | None:
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
