"""Plain Python values from what the machine built: numbers, strings, lists, dicts; what can't be one stays inert."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rolloutdeck.safe_pickle.batches.fields import build_dense_field, decode_numbers
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import (
    Array,
    Buffer,
    Consolidated,
    Data,
    Datum,
    Dtype,
    Name,
    Nested,
    Piece,
    Proto,
    Rollout,
    Scalar,
    Size,
    Stack,
    Storage,
    Tensor,
    Tree,
    Unreadable,
    read_byte_range,
)

MAX_PLAIN_VALUES = 8_000_000  # a value that is shared counts each time: whoever writes it out meets it each time
MAX_DEPTH = 64
INLINE_VALUES = 4096  # a longer array inside a value is named, not listed
FORMS = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
FORMS |= {"f2": "e", "f4": "f", "f8": "d"}


def convert_to_plain(value: Any) -> Any:
    """Raises SafePickleError for more than MAX_PLAIN_VALUES values."""
    return PlainConverter(MAX_PLAIN_VALUES).plain(value, 0)


def convert_column(value: Any, rows: int, walk: PlainConverter) -> list[Any]:
    """A value per row, inert when it has more or fewer. Raises SafePickleError for more values than `walk` may still
    take."""
    if isinstance(value, Array) and value.shape:
        found = walk.array(value, 0)
    elif isinstance(value, Stack):
        found = walk.stack(value, 0)
    else:
        found = [walk.plain(value, 0)] * rows
    if isinstance(found, list) and len(found) != rows:
        found = Unreadable(f"a column of {len(found):,} values in a batch of {rows:,} rows")
    return found if isinstance(found, list) else [found] * rows


def values(dtype: Dtype, data: Data, count: int) -> list[Any]:
    """The `count` values of a numpy array as plain Python. Raises SafePickleError for text that is none."""
    if dtype.kind == "U":
        return [_text(read_byte_range(data, at * dtype.size, dtype.size)) for at in range(count)]
    if dtype.kind == "S":
        return [read_byte_range(data, at * dtype.size, dtype.size).rstrip(b"\0") for at in range(count)]
    return list(struct.unpack(f"<{count}{FORMS[dtype.code]}", read_byte_range(data, 0, count * dtype.size)))


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-32-le", "surrogatepass").rstrip("\0")
    except UnicodeDecodeError as error:
        raise SafePickleError("a numpy string that is no text") from error


def _nest(flat: list[Any], shape: tuple[int, ...]) -> list[Any]:
    if len(shape) == 1:
        return flat
    step = math.prod(shape[1:])
    return [_nest(flat[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0])]


class PlainConverter:
    """Makes values plain and counts them: a few bytes of a file can stand for any number. What is shared stays so.

    `grain` characters of a text count as one value more."""

    def __init__(self, limit: int, grain: int = 1024) -> None:
        self.limit, self.grain = limit, grain
        self.spent = 0
        self.known: dict[int, tuple[Any, int]] = {}  # id -> what it became, and how many values that stands for

    def spend(self, count: int) -> None:
        self.spent += count
        if self.spent > self.limit:
            raise SafePickleError(f"more than {MAX_PLAIN_VALUES:,} values")

    def plain(self, value: Any, depth: int) -> Any:
        make = MAKE.get(type(value))
        if make is None:
            self.spend(1 + len(value) // self.grain if type(value) is str else 1)
            return value
        known = self.known.get(id(value))
        if known is None:
            return self._made(make, value, depth)
        self.spend(known[1])
        return known[0]

    def _made(self, make: Callable[[PlainConverter, Any, int], Any], value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return Unreadable("values nested too deep")
        before = self.spent
        self.spend(1)
        self.known[id(value)] = (Unreadable("value inside itself"), 1)
        made = make(self, value, depth + 1)
        self.known[id(value)] = (made, self.spent - before)
        return made

    def list_of(self, value: Any, depth: int) -> Any:
        return [self.plain(member, depth) for member in value]

    def tuple_of(self, value: Any, depth: int) -> Any:
        return tuple([self.plain(member, depth) for member in value])

    def dict_of(self, value: Any, depth: int) -> Any:
        return {self.key(key): self.plain(member, depth) for key, member in value.items()}

    def key(self, value: Any) -> Any:
        if type(value) is str:
            self.spend(len(value) // self.grain)
        return str(value) if isinstance(value, Unreadable) else value

    def scalar(self, value: Scalar, depth: int) -> Any:
        return values(value.dtype, value.data, 1)[0]

    def small_array(self, value: Array, depth: int) -> Any:
        if math.prod(value.shape) <= INLINE_VALUES or isinstance(value.data, list):
            return self.array(value, depth)
        return Unreadable(f"numpy array of shape {value.shape}")

    def array(self, value: Array, depth: int) -> Any:
        if not isinstance(value.dtype, Dtype):
            return value.dtype or Unreadable("numpy array without a state")
        self.spend(math.prod(max(size, 1) for size in value.shape))
        count = math.prod(value.shape)
        if isinstance(value.data, list):
            flat = self.list_of(value.data, depth)
        else:
            assert value.data is not None
            flat = values(value.dtype, value.data, count)
        if len(flat) != count:  # its list was changed behind its back
            return Unreadable(f"numpy array of shape {value.shape} with {len(flat):,} values")
        return _nest(flat, value.shape) if value.shape else flat[0]

    def tensor(self, value: Tensor, depth: int) -> Any:
        if not value.shape or math.prod(value.shape) > INLINE_VALUES:
            return Unreadable(f"{value.storage.dtype} tensor of shape {value.shape}")
        self.spend(math.prod(max(size, 1) for size in value.shape))
        try:
            return _nest(decode_numbers(value.storage.dtype, build_dense_field(value).whole()[0]), value.shape)
        except SafePickleError as error:
            return Unreadable(str(error))

    def stack(self, value: Stack, depth: int) -> Any:
        return [self.plain(member, depth) for member in value.values]

    def datum(self, value: Datum, depth: int) -> Any:
        return self.plain(value.value, depth)

    def bytes_in_file(self, value: Piece, depth: int) -> Any:
        return Unreadable(f"{len(value):,} bytes")

    def name(self, value: Name, depth: int) -> Any:
        return Unreadable(str(value))

    def other(self, value: Any, depth: int) -> Any:
        return Unreadable(type(value).__name__.lower())


MAKE: dict[type, Callable[[PlainConverter, Any, int], Any]] = {
    list: PlainConverter.list_of,
    tuple: PlainConverter.tuple_of,
    dict: PlainConverter.dict_of,
    OrderedDict: PlainConverter.dict_of,
    Scalar: PlainConverter.scalar,
    Array: PlainConverter.small_array,
    Tensor: PlainConverter.tensor,
    Size: PlainConverter.tuple_of,
    Stack: PlainConverter.stack,
    Datum: PlainConverter.datum,
    Piece: PlainConverter.bytes_in_file,
    Name: PlainConverter.name,
    **dict.fromkeys((Nested, Storage, Consolidated, Tree, Proto, Dtype, Buffer, Rollout), PlainConverter.other),
}
