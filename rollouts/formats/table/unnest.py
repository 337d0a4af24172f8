"""Splits rows that hold several samples.

| a row                                                            | written by                                       |
|------------------------------------------------------------------|--------------------------------------------------|
| a list of responses to its prompt, lists of the same length      | verl's `main_generation`, best-of-n data sets    |
| a list in every column, also in the prompt's                     | `completions.jsonl` of ms-swift, a row per step  |
| numbered columns for each generation: `input_1`, `output_1`, …   | validation tables of verl and EasyR1 in W&B      |
| its samples as objects in a list                                 | groups of trajectories of ART                    |

A column is split with the responses if it has a list of the same length in all of the first rows. Other values are
repeated in each sample. Sources: verl/trainer/main_generation.py and verl/utils/tracking.py of volcengine/verl
b178a3cd, swift/rlhf_trainers/grpo_trainer.py:1878 of modelscope/ms-swift 3602360a, verl/utils/logger/gen_logger.py of
hiyouga/EasyR1 b44b3110.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rolloutdeck.protocol import find_samples_column, group_numbered_columns, guess_columns, is_generation_mapping
from rollouts.formats.readers import JsonObject, chat, to_jsonable
from rollouts.lib import CacheSize, cached

PLURAL_COLUMNS = ("responses", "completions", "generations", "predictions", "outputs")
LIST_TEXT = re.compile(r"\[\s*['\"]")
MAX_CELL_CHARS = 1 << 20  # a longer cell is not parsed
# Parts whose value for one sample is itself a list.
LIST_PARTS = frozenset(("prompt_ids", "response_ids", "response_mask", "logprobs", "ref_logprobs", "segments", "tools"))


def split_wide_row(row: JsonObject, mapping: Mapping[str, str]) -> list[JsonObject]:
    """Splits numbered columns or samples as objects into rows. `mapping` is the {part: column} of the upload."""
    if any(isinstance(row.get(column), str) and LIST_TEXT.match(row[column]) for column in PLURAL_COLUMNS):
        row = {name: parse_list(value) for name, value in row.items()}
    if any(column in row for column in mapping.values()):
        return [row]
    if column := find_samples_column(row):
        rest = {name: value for name, value in row.items() if name != column}
        return [{**rest, **flatten_choice(sample)} for sample in row[column]]
    if is_generation(tuple(row)) or not (groups := group_numbered_columns(row)):
        return [row]
    numbered = {column for columns in groups.values() for column in columns.values()}
    shared = {name: value for name, value in row.items() if name not in numbered}
    samples = ({base: row[column] for base, column in columns.items()} for columns in groups.values())
    return [{**shared, **sample} for sample in samples if any(value is not None for value in sample.values())]


@cached(CacheSize.TABLE_LAYOUTS)
def is_generation(names: tuple[str, ...]) -> bool:
    """Returns whether a row with these columns is one generation. Most tables have the same columns in every row."""
    return is_generation_mapping(guess_columns(names, {}))


def parse_list(value: Any) -> Any:
    """Parses a list that was written as JSON, or as Python (pandas does so in a CSV). Returns any other value as is."""
    if not isinstance(value, str) or not value.startswith("[") or len(value) > MAX_CELL_CHARS:
        return value
    for parse in (json.loads, ast.literal_eval):
        try:
            parsed = parse(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(parsed, list):
            return to_jsonable(parsed)
    return value


def flatten_choice(sample: JsonObject) -> JsonObject:
    """Returns the columns of a sample. The `message` of an OpenAI choice becomes the response."""
    message = sample.get("message")
    if not isinstance(message, dict):
        return sample
    return {**{name: value for name, value in sample.items() if name != "message"}, "response": [message]}


class ResponseUnnester:
    """Splits the rows of one table whose response is a list. `columns` is {part: column}, see `mapping.py`."""

    def __init__(self, columns: Mapping[str, str], first_rows: Iterable[JsonObject]) -> None:
        self.response_column = columns.get("response") or columns.get("response_ids") or ""
        self.prompt_column = columns.get("prompt") or columns.get("prompt_ids") or columns.get("messages")
        self.has_only_ids = "response" not in columns
        self.parts = {column: part for part, column in columns.items()}
        rows = [row for row in first_rows if self.has_response_list(row)]
        names = dict.fromkeys(name for row in rows for name in row)
        self.split_columns = {name for name in names if all(self.is_parallel(name, row) for row in rows)}

    def has_response_list(self, row: JsonObject) -> bool:
        """Returns whether the row has a list of responses: texts, conversations or lists of ids."""
        value = row.get(self.response_column)
        if not isinstance(value, list) or not value or chat.is_conversation(value):
            return False
        if self.has_only_ids:
            return all(isinstance(response, list) for response in value)
        return all(
            response is None or isinstance(response, str) or chat.is_conversation(response) for response in value
        )

    def is_parallel(self, name: str, row: JsonObject) -> bool:
        """Returns whether a column has one value per response, or none at all."""
        value, count = row.get(name), len(row[self.response_column])
        if isinstance(value, dict):
            return bool(value) and all(isinstance(inner, list) and len(inner) == count for inner in value.values())
        if value is None or name == self.response_column:
            return True
        if not isinstance(value, list) or len(value) != count or chat.is_conversation(value):
            return False
        is_nested = all(inner is None or isinstance(inner, list) for inner in value)
        return is_nested or self.parts.get(name) not in LIST_PARTS

    def split(self, row: JsonObject) -> Iterator[tuple[JsonObject, int | None]]:
        """Yields each sample of a row with its index among the responses to its prompt; None if the row is one sample.
        Yields nothing if the response is an empty list and a list in other rows."""
        if self.split_columns and row.get(self.response_column) == []:
            return
        if not self.has_response_list(row):
            yield row, None
            return
        names = {name for name in self.split_columns if self.is_parallel(name, row)}
        for index in range(len(row[self.response_column])):
            sample = {name: select(value, index) if name in names else value for name, value in row.items()}
            yield sample, None if self.prompt_column in names else index


def select(value: Any, index: int) -> Any:
    if isinstance(value, dict):
        return {key: inner[index] for key, inner in value.items()}
    return None if value is None else value[index]
