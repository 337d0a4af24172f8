"""The text that is searched for, and how texts are compared."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rolloutdeck.protocol import TURN_TOKEN, normalize_prompt
from rollouts.samples import is_json_column

MIN_SEARCH_CHARS = 12  # a shorter text is found where it says something else
SPACE = rf"(?:\s|{TURN_TOKEN.pattern})+"
JSON_SPACE = rf"(?:\s|\\[nrt]|{TURN_TOKEN.pattern})+"  # in JSON, white space inside a text is escaped


def escape_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(frozen=True, slots=True)
class SearchText:
    """A prompt after `normalize_prompt`: white space and the tokens of chat templates do not count. `line` is the
    longest line of the recorded prompt, which raw bytes have as it is."""

    normalized: str
    line: str

    @classmethod
    def from_prompt(cls, prompt: str) -> SearchText | None:
        """Returns None if the prompt is too short to search for."""
        normalized = normalize_prompt(prompt)
        line = max((part.strip() for part in re.split(rf"\n|{TURN_TOKEN.pattern}", prompt)), key=len)
        return cls(normalized, line) if len(normalized) >= MIN_SEARCH_CHARS else None

    @property
    def word(self) -> str:
        """The longest word, for a fast first test."""
        return max(self.normalized.split(), key=len)

    def build_byte_patterns(self) -> list[bytes]:
        """The ways in which the longest line is written in files of text: plain, JSON, ASCII JSON."""
        if len(self.line) < MIN_SEARCH_CHARS:
            return []
        forms = (self.line, escape_json(self.line), json.dumps(self.line)[1:-1])
        return [form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms)]

    def is_in(self, value: Any) -> bool:
        """Whether a text, or any text in a JSON value, contains the prompt."""
        if isinstance(value, str):
            return self.normalized in normalize_space(value)
        if isinstance(value, dict):
            return any(self.is_in(key) or self.is_in(member) for key, member in value.items())
        return isinstance(value, list) and any(self.is_in(member) for member in value)

    def find_rows(self, table: pa.Table) -> Any:
        """Returns a mask of the rows of a body that contain the prompt in any column."""
        names = [field.name for field in table.schema if field.type == pa.string() and field.name not in OWN_COLUMNS]
        masks = [self.find_values(table[name], has_json_texts(name)) for name in names]
        return reduce(pc.or_, masks)

    def find_values(self, values: pa.ChunkedArray, is_json: bool) -> Any:
        form = escape_json if is_json else str
        found = pc.fill_null(pc.match_substring(values, form(self.word)), False)
        if not pc.any(found).as_py():
            return found
        pattern = JSON_SPACE if is_json else SPACE
        candidates = pc.if_else(found, values, pa.scalar(None, pa.string()))
        texts = pc.utf8_normalize(pc.replace_substring_regex(candidates, pattern, " "), form="NFC")
        return pc.fill_null(pc.match_substring(texts, form(self.normalized)), False)


OWN_COLUMNS = ("id", "prompt_key")


def has_json_texts(name: str) -> bool:
    """Whether a column of a body has texts as JSON, so with escapes. `more` has the extra values without a column."""
    return is_json_column(name) or name == "more"


def normalize_space(text: str) -> str:
    """As `normalize_prompt`, but without a look at turns: the prompt may be anywhere in the text."""
    return unicodedata.normalize("NFC", " ".join(TURN_TOKEN.sub(" ", text).split()))
