"""Conversion of trainer data to JSON: dicts, pyarrow, pandas and polars tables, arrays and tensors.

None of these libraries is imported; their objects are recognized by their methods.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rolloutdeck.client import process_identity

ROWS_PER_READ = 64  # rows of a table converted to dicts at once, which holds the interpreter lock
PROBED_ROWS = 16
MAX_METRIC_NAME_LENGTH = 300  # characters of a metric's name


class RowBatch:
    """Rows of one call: `count` of them, about `size` bytes as JSON. Iterating reads them once."""

    def __init__(self, rows: Any) -> None:
        self._read, self.count = _build_reader(rows)
        self.size = self._estimate_size()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for start in range(0, self.count, ROWS_PER_READ):
            yield from self._read(start, min(start + ROWS_PER_READ, self.count))

    def _estimate_size(self) -> int:
        """Estimates the bytes of all rows from a few of them, since this runs on the trainer's thread."""
        if not self.count:
            return 0
        stride = max(1, self.count // PROBED_ROWS)
        probes = [row for start in range(0, self.count, stride) for row in self._read(start, start + 1)]
        return sum(map(_estimate_row_size, probes)) * self.count // len(probes)


def _build_reader(rows: Any) -> tuple[Callable[[int, int], Iterable[Mapping[str, Any]]], int]:
    """Returns a function that reads the rows start to end as dicts, and the number of rows."""
    if hasattr(rows, "to_pylist") and hasattr(rows, "slice"):  # pyarrow: slice(offset, length)
        return lambda start, end: rows.slice(start, end - start).to_pylist(), rows.num_rows
    if hasattr(rows, "iloc"):  # pandas
        frame = rows.copy()
        return lambda start, end: frame.iloc[start:end].to_dict("records"), len(frame)
    if hasattr(rows, "to_dicts") and hasattr(rows, "slice"):  # polars
        return lambda start, end: rows.slice(start, end - start).to_dicts(), len(rows)
    if isinstance(rows, Mapping):
        rows = [rows]
    # The trainer may change its dicts as soon as the call returns.
    copies: list[Mapping[str, Any]] = [dict(row) for row in rows]
    return lambda start, end: copies[start:end], len(copies)


def _estimate_row_size(row: Mapping[str, Any], depth: int = 3) -> int:
    return 16 + sum(len(str(key)) + _estimate_value_size(value, depth) for key, value in row.items())


def _estimate_value_size(value: Any, depth: int) -> int:
    """Estimates the bytes of a value. `depth` limits the levels of messages and tool calls that are counted."""
    if isinstance(value, str):
        return len(value)
    if depth and isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        return sum(_estimate_row_size(message, depth - 1) for message in value if isinstance(message, Mapping))
    try:
        return 8 * len(value)
    except TypeError:
        return 12


def convert_for_json(value: Any) -> Any:
    """Converts a value that `json` can't write: arrays and tensors to lists, 0-d ones to numbers, else to text."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return vars(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "item"):
        return value.item()
    return str(value)


_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=convert_for_json).encode
_write_ascii = json.JSONEncoder(separators=(",", ":"), default=convert_for_json).encode


def serialize_row(row: Mapping[str, Any]) -> bytes:
    r"""Returns one row as a JSON line.

    NaN and Infinity are written bare: a NaN score differs from a score that was never recorded, and the native format
    reads both. Unpaired surrogates are written as `\ud800`. Raises TypeError, ValueError or RecursionError if the row
    has no JSON form (for example, it contains itself).
    """
    try:
        text = _write(row)
    except TypeError:  # keys that are not text
        row = convert_keys_to_text(row)
        text = _write(row)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return _write_ascii(row).encode() + b"\n"


def convert_keys_to_text(value: Any) -> Any:
    """Returns the value with every key of its dicts as text."""
    if isinstance(value, Mapping):
        return {str(key): convert_keys_to_text(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [convert_keys_to_text(inner) for inner in value]
    return value


def flatten_metrics(values: Mapping[str, Any], prefix: str = "") -> dict[str, float | int | None]:
    """Returns metrics as plain numbers.

    Nested dicts are joined by "/", one-element arrays become numbers, NaN and Infinity become None. Values that are not
    numbers (text, longer arrays) are skipped.
    """
    numbers: dict[str, float | int | None] = {}
    for key, value in values.items():
        name = process_identity.clean_name(f"{prefix}{key}", MAX_METRIC_NAME_LENGTH)
        if isinstance(value, Mapping):
            numbers.update(flatten_metrics(value, f"{name}/"))
        else:
            _add_number(numbers, name, value)
    return numbers


def _add_number(numbers: dict[str, float | int | None], name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (int, float)) and hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, TypeError, RuntimeError):  # more than one element
            return
    if isinstance(value, bool):
        numbers[name] = int(value)
    elif isinstance(value, float):
        numbers[name] = float(value) if math.isfinite(value) else None
    elif value is None or isinstance(value, int):
        numbers[name] = value
