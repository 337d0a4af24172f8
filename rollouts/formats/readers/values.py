"""Values as the safe readers and Parquet give them, as a record holds them."""

from __future__ import annotations

from math import isfinite
from typing import Any

from rollouts.errors import UnreadableDumpError
from rollouts.formats.readers.jsonl import parse_response_text
from rollouts.samples import to_float, to_integer

TEXT_DEPTH = 20
MOST_SHOWN = 1024


def binarize_mask(values: list[int]) -> list[int]:
    return values if set(values) <= {0, 1} else [int(bool(one)) for one in values]


def replace_nonfinite(values: list[float]) -> list[float | None]:
    """NaN and infinity are missing."""
    return list(values) if all(map(isfinite, values)) else [to_float(one) for one in values]


def check_token_ids(tokens: list[int]) -> list[int]:
    """Raises UnreadableDumpError for what no vocabulary has."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < 2**31:
        raise UnreadableDumpError(
            "The batch holds token ids that are none: below zero, or above two thousand millions."
        )
    return tokens


def to_jsonable(value: Any, depth: int = 0) -> Any:
    """JSON of a value as it was read; what could not be read is named."""
    if depth > TEXT_DEPTH:
        return "…"
    if isinstance(value, float):
        return to_float(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if to_integer(value) is not None else str(value)
    if isinstance(value, dict):
        return {str(key): to_jsonable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(inner, depth + 1) for inner in value]
    return f"<{value}>" if not isinstance(value, (bytes, bytearray)) else f"<{len(value):,} bytes>"


def parse_continuation(value: Any) -> str:
    """Text of a response, of several turns too, as it reads after a prompt that ends with the assistant's name. Raises
    ValueError for what is neither text nor messages."""
    text = parse_response_text(value) if value else ""
    return text.removeprefix("assistant\n") if isinstance(value, list) and len(value) > 1 else text


def summarize_value(value: Any) -> Any:
    """JSON of a value; of a list of more numbers than anybody reads only how many there are."""
    count = size(value)
    return to_jsonable(value) if count <= MOST_SHOWN else f"<{count:,} values>"


def size(value: Any) -> int:
    """How many values a list of lists has; 0 for anything else."""
    if not isinstance(value, (list, tuple)):
        return 0
    return sum(max(1, size(inner)) for inner in value)
