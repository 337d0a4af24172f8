"""Turns what a trainer has in its hands into JSON: dicts, pyarrow, pandas and polars tables, arrays, tensors.

Nothing of those libraries is imported; they are recognised by their methods.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rolloutdeck.client import launch

ROWS_AT_ONCE = 64  # rows of a table turned into dicts in one go, which holds the interpreter lock
PROBED_ROWS = 16
MAX_METRIC_NAME_LENGTH = 300  # characters of a metric's name


class RowBatch:
    """Rows as they were handed over: `count` of them, about `size` bytes of JSON, read once by iterating."""

    def __init__(self, rows: Any) -> None:
        self._read, self.count = _reader(rows)
        self.size = self._guess()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for start in range(0, self.count, ROWS_AT_ONCE):
            yield from self._read(start, min(start + ROWS_AT_ONCE, self.count))

    def _guess(self) -> int:
        """Bytes of all rows, from a few of them: this runs on the trainer's thread."""
        if not self.count:
            return 0
        every = max(1, self.count // PROBED_ROWS)
        probed = [row for start in range(0, self.count, every) for row in self._read(start, start + 1)]
        return sum(map(_row_size, probed)) * self.count // len(probed)


def _reader(rows: Any) -> tuple[Callable[[int, int], Iterable[Mapping[str, Any]]], int]:
    """How to read rows start to end as dicts, and how many there are."""
    if hasattr(rows, "to_pylist") and hasattr(rows, "slice"):  # pyarrow: slice(offset, length)
        return lambda start, end: rows.slice(start, end - start).to_pylist(), rows.num_rows
    if hasattr(rows, "iloc"):  # pandas
        kept = rows.copy()
        return lambda start, end: kept.iloc[start:end].to_dict("records"), len(kept)
    if hasattr(rows, "to_dicts") and hasattr(rows, "slice"):  # polars
        return lambda start, end: rows.slice(start, end - start).to_dicts(), len(rows)
    if isinstance(rows, Mapping):
        rows = [rows]
    # The trainer may change its dicts as soon as the call returns.
    copied: list[Mapping[str, Any]] = [dict(row) for row in rows]
    return lambda start, end: copied[start:end], len(copied)


def _row_size(row: Mapping[str, Any], depth: int = 3) -> int:
    return 16 + sum(len(str(key)) + _value_size(value, depth) for key, value in row.items())


def _value_size(value: Any, depth: int) -> int:
    """`depth`: levels of messages and tool calls that are looked into."""
    if isinstance(value, str):
        return len(value)
    if depth and isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        return sum(_row_size(inner, depth - 1) for inner in value if isinstance(inner, Mapping))
    try:
        return 8 * len(value)
    except TypeError:
        return 12


def convert_for_json(value: Any) -> Any:
    """What `json` can't write, as what it can: arrays and tensors as lists, 0-d ones as numbers, else text."""
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
    r"""One row as a JSON line. NaN and Infinity stay as they are, bare: a score that is NaN is not a score that was
    never recorded, and the native format reads both. Unpaired surrogates are written as `\ud800`.

    Raises TypeError, ValueError or RecursionError when the row has no JSON form (it contains itself).
    """
    try:
        text = _write(row)
    except TypeError:  # keys that are no text
        row = convert_keys_to_text(row)
        text = _write(row)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return _write_ascii(row).encode() + b"\n"


def convert_keys_to_text(value: Any) -> Any:
    """The same value with every key as text."""
    if isinstance(value, Mapping):
        return {str(key): convert_keys_to_text(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [convert_keys_to_text(inner) for inner in value]
    return value


def flatten_metrics(values: Mapping[str, Any], prefix: str = "") -> dict[str, float | int | None]:
    """Metrics as plain numbers: nested dicts by "/", one-element arrays as their element, NaN and Infinity as None.

    What is no number (text, longer arrays) is left out.
    """
    found: dict[str, float | int | None] = {}
    for key, value in values.items():
        name = launch.clean_name(f"{prefix}{key}", MAX_METRIC_NAME_LENGTH)
        if isinstance(value, Mapping):
            found.update(flatten_metrics(value, f"{name}/"))
        else:
            _keep_number(found, name, value)
    return found


def _keep_number(found: dict[str, float | int | None], name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (int, float)) and hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, TypeError, RuntimeError):  # more than one element
            return
    if isinstance(value, bool):
        found[name] = int(value)
    elif isinstance(value, float):
        found[name] = float(value) if math.isfinite(value) else None
    elif value is None or isinstance(value, int):
        found[name] = value
