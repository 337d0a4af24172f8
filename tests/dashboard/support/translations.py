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
        wanted = sorted(HOLE.findall(self.plural or self.text))
        return any(sorted(HOLE.findall(said)) != wanted for said in self.translations)


def entries(path: Path) -> list[Entry]:
    """All of a .po file but its header and what it no longer uses."""
    found = [entry(block) for block in path.read_text().split("\n\n")]
    return [one for one in found if one and one.text]


def entry(block: str) -> Entry | None:
    told: dict[str, str] = {}
    at = ""
    for line in block.splitlines():
        if line.startswith("msg"):
            at, _, rest = line.partition(" ")
            told[at] = ast.literal_eval(rest)
        elif line.startswith('"'):
            told[at] += ast.literal_eval(line)
    if "msgid" not in told:
        return None
    said = tuple(value for name, value in told.items() if name.startswith("msgstr"))
    return Entry(told["msgid"], told.get("msgid_plural", ""), said, "#, fuzzy" in block)
