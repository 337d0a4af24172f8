"""Rows that hold several samples.

| a row                                                            | written by                                        |
|------------------------------------------------------------------|---------------------------------------------------|
| a list of responses to its prompt, lists of the same length      | `main_generation` of verl, data sets of best-of-n |
| a list in every column, the prompt's too                         | `completions.jsonl` of ms-swift, a row per step   |
| a generation in every few columns: `input_1`, `output_1`, …      | the validation tables of verl and EasyR1 in W&B |
| its samples as objects in a list                                 | groups of trajectories of ART                     |

A column goes along with the responses where it holds a list of as many values in all rows that are looked at; every
other value is told with each of them. Sources: verl/trainer/main_generation.py and verl/utils/tracking.py of
volcengine/verl b178a3cd, swift/rlhf_trainers/grpo_trainer.py:1878 of modelscope/ms-swift 3602360a, verl/utils/logger/
gen_logger.py of hiyouga/EasyR1 b44b3110.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rolloutdeck.protocol import find_samples_column, group_numbered_columns, guess_columns, is_generation_mapping
from rollouts.formats.readers import chat
from rollouts.formats.readers.values import to_jsonable
from rollouts.lib import MAX_TABLE_LAYOUTS, cached

PLURAL = ("responses", "completions", "generations", "predictions", "outputs")
LISTED = re.compile(r"\[\s*['\"]")
MOST_OPENED = 1 << 20  # characters of a cell

Row = dict[str, Any]
OF_TOKENS = frozenset(
    ("prompt_ids", "response_ids", "response_mask", "logprobs", "ref_logprobs", "advantages", "segments", "tools")
)


def split_wide_row(row: Row, mapping: Mapping[str, str]) -> list[Row]:
    """The rows of one that has a generation in every few columns, or its samples as objects; else the row itself.
    `mapping`: {part: column} as the uploader gave it."""
    if any(isinstance(row.get(column), str) and LISTED.match(row[column]) for column in PLURAL if column in row):
        row = {name: opened(value) for name, value in row.items()}
    if any(column in row for column in mapping.values()):
        return [row]
    if column := find_samples_column(row):
        rest = {name: value for name, value in row.items() if name != column}
        return [{**rest, **told_of(one)} for one in row[column]]
    if says_one(tuple(row)) or not (found := group_numbered_columns(row)):
        return [row]
    taken = {column for columns in found.values() for column in columns.values()}
    shared = {name: value for name, value in row.items() if name not in taken}
    each = ({base: row[column] for base, column in columns.items()} for columns in found.values())
    return [{**shared, **one} for one in each if any(value is not None for value in one.values())]


@cached(MAX_TABLE_LAYOUTS)
def says_one(names: tuple[str, ...]) -> bool:
    """Whether a row of these columns is one generation: the same for every row of most tables."""
    return is_generation_mapping(guess_columns(names, {}))


def opened(value: Any) -> Any:
    """A list in a cell, as JSON or as Python writes it, which is how pandas puts lists into a CSV."""
    if not isinstance(value, str) or not value.startswith("[") or len(value) > MOST_OPENED:
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list):
            return to_jsonable(found)
    return value


def told_of(one: Row) -> Row:
    """A sample as its columns; of an answer in the form of OpenAI's `choices`, what it says."""
    message = one.get("message")
    if not isinstance(message, dict):
        return one
    return {**{name: value for name, value in one.items() if name != "message"}, "response": [message]}


class ResponseUnnester:
    """How rows of one table hold their responses: `found` says which column is which part, see `formats.columns`."""

    def __init__(self, found: Mapping[str, str], rows: Iterable[Row]) -> None:
        self.column = found.get("response") or found.get("response_ids") or ""
        self.tokens = "response" not in found
        self.parts = {column: part for part, column in found.items()}
        folded = [row for row in rows if self.several(row)]
        names = dict.fromkeys(name for row in folded for name in row)
        self.along = {name for name in names if folded and all(self.goes_along(name, row) for row in folded)}
        self.asked = found.get("prompt") or found.get("prompt_ids") or found.get("messages")

    def several(self, row: Row) -> bool:
        """Whether it holds a list of responses: texts, conversations, or lists of ids."""
        value = row.get(self.column)
        if not isinstance(value, list) or not value or chat.is_conversation(value):
            return False
        if self.tokens:
            return all(isinstance(one, list) for one in value)
        return all(one is None or isinstance(one, str) or chat.is_conversation(one) for one in value)

    def goes_along(self, name: str, row: Row) -> bool:
        """Whether a column has a value for each response, or none at all."""
        value, count = row.get(name), len(row[self.column])
        if isinstance(value, dict):
            return bool(value) and all(isinstance(one, list) and len(one) == count for one in value.values())
        if value is None or name == self.column:
            return True
        if not isinstance(value, list) or len(value) != count or chat.is_conversation(value):
            return False
        of_tokens = self.parts.get(name) in OF_TOKENS - {"advantages"}
        return not of_tokens or all(one is None or isinstance(one, list) for one in value)

    def rows(self, row: Row) -> Iterator[tuple[Row, int | None]]:
        """Each sample of a row, with its place among the responses to its prompt; None where there is no such list.
        None of a row whose list is empty, as others' are not."""
        if self.along and row.get(self.column) == []:
            return
        if not self.several(row):
            yield row, None
            return
        along = {name for name in self.along if self.goes_along(name, row)}
        for place in range(len(row[self.column])):
            one = {name: at(value, place) if name in along else value for name, value in row.items()}
            yield one, None if self.asked in along else place


def at(value: Any, place: int) -> Any:
    if isinstance(value, dict):
        return {key: one[place] for key, one in value.items()}
    return None if value is None else value[place]
