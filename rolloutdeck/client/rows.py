"""The rows of one `log_samples` call, in the shapes that people have.

These are an iterable of rows, a dict of columns, one row, or a table of pyarrow, pandas, polars or datasets. A row is a
dict, a dataclass, a named tuple or a pydantic model. A stream is read at once, up to a limit. None of these libraries
is imported; their objects are recognized by their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutdeck.client import serialize
from rolloutdeck.errors import CallError
from rolloutdeck.protocol import RESPONSE_PARTS, guess_columns

ROWS_PER_READ = 64  # rows of a table converted to dicts at once, which holds the interpreter lock
PROBED_ROWS = 16
MAX_STREAMED_ROWS = 200_000  # of a generator, an iterable data set or a lazy frame, which may have no end
MAX_ERROR_CHARS = 200
SAMPLED_ITEMS = 16  # of a list of texts or lists, whose size is estimated
TOO_MANY_ROWS = f"a stream has at most {MAX_STREAMED_ROWS:,} rows; log the others in further calls"
SHAPES = "a list of dicts, a dict of columns, or a table of pyarrow, pandas, polars or datasets"

RowReader = Callable[[int, int], Sequence[Any]]  # returns the rows from start to end


class RowBatch:
    """Rows of one call: `count` of them, about `size` bytes as JSON. A row that is no dict is passed on as it is.

    `error`: why the rows of a stream are not all of its rows; "" if they are.
    """

    def __init__(self, rows: Any) -> None:
        stream = _read_stream(rows)
        self.error = stream.error if stream else ""
        self._read, self.count, self._is_table = _build_reader(stream.rows if stream else rows)
        self.size = self._estimate_size()

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.count, ROWS_PER_READ):
            yield from self._read(start, min(start + ROWS_PER_READ, self.count))

    def list_layouts(self) -> list[tuple[str, ...]]:
        """Returns the keys of the rows, each combination once, in the order of their first use."""
        layouts: dict[tuple[str, ...], None] = {}
        last: Any = None
        for row in self._read(0, 1) if self._is_table else self:  # all rows of a table have the same keys
            if isinstance(row, Mapping) and row.keys() != last:
                last = row.keys()
                layouts[tuple(map(str, row))] = None
        return list(layouts)

    def find_example(self) -> dict[str, Any]:
        """Returns the first row that is a dict; {} if there is none."""
        row = next((row for row in self if isinstance(row, Mapping)), {})
        return {str(key): value for key, value in row.items()}

    def _estimate_size(self) -> int:
        """Estimates the bytes of all rows from a few of them, since this runs on the trainer's thread."""
        if not self.count:
            return 0
        stride = max(1, self.count // PROBED_ROWS)
        probes = [row for start in range(0, self.count, stride) for row in self._read(start, start + 1)]
        return sum(map(_estimate_row_size, probes)) * self.count // len(probes)


def _build_reader(rows: Any) -> tuple[RowReader, int, bool]:
    """Returns a function that reads the rows start to end, the number of rows, and whether they are a table.

    Raises CallError.
    """
    if hasattr(rows, "to_pylist") and hasattr(rows, "slice") and hasattr(rows, "num_rows"):  # pyarrow
        return lambda start, end: rows.slice(start, end - start).to_pylist(), rows.num_rows, True
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # pandas
        frame = rows.copy()
        return lambda start, end: frame.iloc[start:end].to_dict("records"), len(frame), True
    if hasattr(rows, "to_dicts") and hasattr(rows, "slice") and hasattr(rows, "__len__"):  # polars
        return lambda start, end: rows.slice(start, end - start).to_dicts(), len(rows), True
    if hasattr(rows, "column_names") and hasattr(rows, "features") and hasattr(rows, "__len__"):  # datasets
        return lambda start, end: _zip_columns(rows[start:end], end - start), len(rows), True
    # The trainer may change its dicts as soon as the call returns.
    copies = [row.copy() if type(row) is dict else _copy_row(row) for row in _list_rows(rows)]
    return lambda start, end: copies[start:end], len(copies), False


@dataclass(frozen=True, slots=True)
class _StreamRows:
    """The rows of a stream up to its end, an error or the limit."""

    rows: Any
    error: str = ""


def _read_stream(rows: Any) -> _StreamRows | None:
    """Returns what a stream has; None for other objects. Raises CallError if it fails before its first row."""
    if hasattr(rows, "collect") and hasattr(rows, "collect_schema"):  # a lazy frame of polars
        return _collect_frame(rows)
    is_iterable_dataset = hasattr(rows, "features") and not hasattr(rows, "__len__")
    if not hasattr(rows, "__iter__") or not (hasattr(rows, "__next__") or is_iterable_dataset):
        return None
    found: list[Any] = []
    try:
        for row in rows:
            if len(found) == MAX_STREAMED_ROWS:
                return _StreamRows(found, TOO_MANY_ROWS)
            found.append(row)
    except Exception as error:  # the code of the user
        if not found:
            raise CallError(_describe_failure(error)) from error
        return _StreamRows(found, _describe_failure(error))
    return _StreamRows(found)


def _collect_frame(lazy: Any) -> _StreamRows:
    try:
        frame = lazy.head(MAX_STREAMED_ROWS + 1).collect()
    except Exception as error:  # its query
        raise CallError(_describe_failure(error)) from error
    is_all = len(frame) <= MAX_STREAMED_ROWS
    return _StreamRows(frame.head(MAX_STREAMED_ROWS), "" if is_all else TOO_MANY_ROWS)


def _describe_failure(error: Exception) -> str:
    """Returns the error of the user's code."""
    return f"the rows raised {type(error).__name__}: {str(error).partition(chr(10))[0][:MAX_ERROR_CHARS]}"


def _list_rows(rows: Any) -> list[Any]:
    if isinstance(row := _copy_row(rows), Mapping):
        return _split_columns(row)
    if isinstance(rows, (str, bytes, bytearray)) or not (hasattr(rows, "__iter__") and hasattr(rows, "__len__")):
        raise CallError(f"the rows must be {SHAPES}, not {type(rows).__name__}")
    return list(rows)


def _copy_row(row: Any) -> Any:
    if isinstance(row, Mapping):
        return dict(row)
    if hasattr(row, "__dataclass_fields__") and not isinstance(row, type):
        return serialize.convert_dataclass(row)
    if hasattr(row, "_asdict"):  # a named tuple
        return dict(row._asdict())
    if hasattr(row, "model_dump") and not isinstance(row, type):  # pydantic
        return row.model_dump()
    return row


def _split_columns(columns: Mapping[Any, Any]) -> list[Any]:
    """Returns the rows of a dict of columns; a dict of one row unchanged. Raises CallError.

    Columns are recognized by their texts: the prompt and the response are lists, and not lists of messages. A single
    value, such as the name of a model, is repeated in all rows.
    """
    parts = guess_columns([str(name) for name in columns], {})
    texts = {part: columns[parts[part]] for part in ("prompt", *RESPONSE_PARTS) if parts.get(part) in columns}
    if not texts or not all(_is_column(part, value) for part, value in texts.items()):
        return [columns]
    lists = {str(name): len(value) for name, value in columns.items() if _is_list(value)}
    if len(set(lists.values())) > 1:
        lengths = ", ".join(f"`{name[:40]}` {length}" for name, length in list(lists.items())[:10])
        raise CallError(f"the columns have different lengths: {lengths}")
    return _zip_columns(columns, next(iter(lists.values())))


def _zip_columns(columns: Mapping[Any, Any], count: int) -> list[Any]:
    values = {
        name: list(value) if _is_list(value) else [value] * count for name, value in columns.items()
    }  # `list`: a pandas column is indexed by its labels
    return [{name: value[number] for name, value in values.items()} for number in range(count)]


def _is_list(value: Any) -> bool:
    """Whether a value is a list, an array or a column of a table."""
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not hasattr(value, "__getitem__"):
        return False
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0  # an array without dimensions has no length


def _is_column(part: str, value: Any) -> bool:
    """Whether this is a list of prompts, responses, conversations or token id lists; not one of them."""
    if not _is_list(value):
        return False
    first = value[0] if isinstance(value, (list, tuple)) and value else next(iter(value), None)
    if part in ("response_ids", "messages"):
        return _is_list(first) or first is None
    return not (isinstance(first, Mapping) and ("role" in first or "from" in first))


def _estimate_row_size(row: Any, depth: int = 3) -> int:
    if not isinstance(row, Mapping):
        return 16 + _estimate_value_size(row, depth)
    return 16 + sum(len(str(key)) + _estimate_value_size(value, depth) for key, value in row.items())


def _estimate_value_size(value: Any, depth: int) -> int:
    """Estimates the bytes of a value. `depth` limits the levels of messages and tool calls that are counted."""
    if isinstance(value, str):
        return len(value)
    if depth and isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
        if isinstance(value[0], Mapping):
            return sum(_estimate_row_size(message, depth - 1) for message in value if isinstance(message, Mapping))
        some = value[:: len(value) // SAMPLED_ITEMS + 1]
        return sum(_estimate_value_size(item, depth - 1) for item in some) * len(value) // len(some)
    if depth and isinstance(value, Mapping):
        return _estimate_row_size(value, depth - 1)
    try:
        if serialize.is_pillow_image(value):
            return int(value.width * value.height * len(value.getbands()))
        return int(value.nbytes) if hasattr(value, "nbytes") else 8 * len(value)
    except Exception:  # objects of other libraries may raise anything
        return 12
