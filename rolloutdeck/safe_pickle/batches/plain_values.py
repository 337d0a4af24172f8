"""Converts what the interpreter built to plain Python: numbers, strings, lists, dicts. Everything else stays inert,
except images, which remain a `Picture` until a page needs them."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rolloutdeck.safe_pickle import load
from rolloutdeck.safe_pickle.batches.fields import build_dense_field, decode_numbers
from rolloutdeck.safe_pickle.errors import SafePickleError

MAX_PLAIN_VALUES = 8_000_000  # a shared value counts each time, because it is written out each time
MAX_DEPTH = 64
MAX_INLINE_VALUES = 4096  # of a longer array inside a value only the shape is returned
TEXT_TYPES = {str, bytes, load.Unreadable}
STRUCT_CODES = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
STRUCT_CODES |= {"f2": "e", "f4": "f", "f8": "d"}


def convert_to_plain(value: Any) -> Any:
    """Returns a value as plain Python. Raises SafePickleError if it has more than MAX_PLAIN_VALUES values."""
    return PlainConverter(MAX_PLAIN_VALUES).convert(value, 0)


def convert_column(value: Any, rows: int, converter: PlainConverter) -> list[Any]:
    """Returns a value per row. All are inert if their number is wrong. Raises SafePickleError for too many values."""
    if isinstance(value, load.Array) and value.shape:
        values_by_row = converter.convert_array(value, 0)
    elif isinstance(value, load.Stack):
        values_by_row = converter.convert_stack(value, 0)
    else:
        values_by_row = [converter.convert(value, 0)] * rows
    if isinstance(values_by_row, list) and len(values_by_row) != rows:
        values_by_row = load.Unreadable(f"a column of {len(values_by_row):,} values in a batch of {rows:,} rows")
    return values_by_row if isinstance(values_by_row, list) else [values_by_row] * rows


def decode_values(dtype: load.Dtype, data: load.Data, count: int) -> list[Any]:
    """Returns the `count` values of a numpy array as plain Python. Raises SafePickleError if a text is invalid."""
    if dtype.kind == "U":
        return [_decode_text(load.read_byte_range(data, index * dtype.size, dtype.size)) for index in range(count)]
    if dtype.kind == "S":
        return [load.read_byte_range(data, index * dtype.size, dtype.size).rstrip(b"\0") for index in range(count)]
    return list(struct.unpack(f"<{count}{STRUCT_CODES[dtype.code]}", load.read_byte_range(data, 0, count * dtype.size)))


def _decode_text(data: bytes) -> str:
    try:
        return data.decode("utf-32-le", "surrogatepass").rstrip("\0")
    except UnicodeDecodeError as error:
        raise SafePickleError("a numpy string that is not valid text") from error


def _nest(flat: list[Any], shape: tuple[int, ...]) -> list[Any]:
    if len(shape) == 1:
        return flat
    step = math.prod(shape[1:])
    return [_nest(flat[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0])]


class TooManyValuesError(SafePickleError):
    """A value has more than MAX_PLAIN_VALUES values. Other values of the file can still be read."""


class PlainConverter:
    """Converts values to plain Python and counts them, because a few bytes can represent any number of values.

    A shared value is converted once. Every `text_unit` characters of a text and every `byte_unit` bytes of a byte
    string count as one more value. `limit` applies to all of them, MAX_PLAIN_VALUES to all but those for bytes: a row
    can have images or videos.
    """

    def __init__(self, limit: int, text_unit: int = 1024, byte_unit: int = 1024) -> None:
        self.limit, self.text_unit, self.byte_unit = limit, text_unit, byte_unit
        self.value_count = self.byte_values = 0  # all, and those for bytes
        self.converted: dict[int, tuple[Any, int, int]] = {}  # id -> the result, and what it counts as

    def count_values(self, count: int, byte_values: int = 0) -> None:
        """`byte_values`: how many of them are for bytes."""
        self.value_count += count
        self.byte_values += byte_values
        if self.value_count > self.limit:
            raise SafePickleError(f"more than {MAX_PLAIN_VALUES:,} values")
        if self.value_count - self.byte_values > MAX_PLAIN_VALUES:
            raise TooManyValuesError(f"more than {MAX_PLAIN_VALUES:,} values")

    def count_text(self, value: str | bytes | load.Unreadable) -> None:
        if isinstance(value, bytes):
            byte_values = len(value) // self.byte_unit
            self.count_values(byte_values, byte_values)
        else:
            self.count_values(len(value.name if isinstance(value, load.Unreadable) else value) // self.text_unit)

    def convert(self, value: Any, depth: int) -> Any:
        convert = CONVERTERS.get(type(value))
        if convert is None:
            self.count_values(1)
            if type(value) in TEXT_TYPES:
                self.count_text(value)
            return value
        converted = self.converted.get(id(value))
        if converted is None:
            return self._convert_container(convert, value, depth)
        self.count_values(*converted[1:])
        return converted[0]

    def _convert_container(self, convert: Callable[[PlainConverter, Any, int], Any], value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return load.Unreadable("values nested too deep")
        values_before, bytes_before = self.value_count, self.byte_values
        self.count_values(1)
        self.converted[id(value)] = (load.Unreadable("value inside itself"), 1, 0)
        result = convert(self, value, depth + 1)
        self.converted[id(value)] = (result, self.value_count - values_before, self.byte_values - bytes_before)
        return result

    def convert_list(self, value: Any, depth: int) -> Any:
        return [self.convert(member, depth) for member in value]

    def convert_tuple(self, value: Any, depth: int) -> Any:
        return tuple([self.convert(member, depth) for member in value])

    def convert_dict(self, value: Any, depth: int) -> Any:
        return {self.convert_key(key): self.convert(member, depth) for key, member in value.items()}

    def convert_set(self, value: Any, depth: int) -> Any:
        for member in value:  # they are plain already, since they had to be hashed
            self.convert(member, depth)
        return value

    def convert_key(self, value: Any) -> Any:
        if type(value) in TEXT_TYPES:
            self.count_text(value)
        return str(value) if isinstance(value, load.Unreadable) else value

    def convert_scalar(self, value: load.Scalar, depth: int) -> Any:
        self.count_array_text(value.dtype, 1)
        return decode_values(value.dtype, value.data, 1)[0]

    def count_array_text(self, dtype: load.Dtype, count: int) -> None:
        if dtype.kind in "US":
            self.count_values(count * int(dtype.code[1:]) // self.text_unit)

    def convert_small_array(self, value: load.Array, depth: int) -> Any:
        if math.prod(value.shape) <= MAX_INLINE_VALUES or isinstance(value.data, list):
            return self.convert_array(value, depth)
        return load.Unreadable(f"numpy array of shape {value.shape}")

    def convert_array(self, value: load.Array, depth: int) -> Any:
        if not isinstance(value.dtype, load.Dtype):
            return value.dtype or load.Unreadable("numpy array without a state")
        self.count_values(math.prod(max(size, 1) for size in value.shape))
        count = math.prod(value.shape)
        if isinstance(value.data, list):
            flat = self.convert_list(value.data, depth)
        else:
            assert value.data is not None
            self.count_array_text(value.dtype, count)
            flat = decode_values(value.dtype, value.data, count)
        if len(flat) != count:  # an opcode changed its list later
            return load.Unreadable(f"numpy array of shape {value.shape} with {len(flat):,} values")
        return _nest(flat, value.shape) if value.shape else flat[0]

    def convert_tensor(self, value: load.Tensor, depth: int) -> Any:
        if not value.shape or math.prod(value.shape) > MAX_INLINE_VALUES:
            return load.Unreadable(f"{value.storage.dtype} tensor of shape {value.shape}")
        self.count_values(math.prod(max(size, 1) for size in value.shape))
        try:
            return _nest(decode_numbers(value.storage.dtype, build_dense_field(value).read_all()[0]), value.shape)
        except SafePickleError as error:
            return load.Unreadable(str(error))

    def convert_stack(self, value: load.Stack, depth: int) -> Any:
        return [self.convert(member, depth) for member in value.values]

    def convert_datum(self, value: load.Datum, depth: int) -> Any:
        return self.convert(value.value, depth)

    def convert_other(self, value: Any, depth: int) -> Any:
        if isinstance(value, load.Piece):
            return load.find_encoded_picture(value) or load.Unreadable(f"{len(value):,} bytes")
        return load.Unreadable(str(value) if isinstance(value, load.Name) else type(value).__name__.lower())


CONVERTERS: dict[type, Callable[[PlainConverter, Any, int], Any]] = {
    list: PlainConverter.convert_list,
    tuple: PlainConverter.convert_tuple,
    dict: PlainConverter.convert_dict,
    OrderedDict: PlainConverter.convert_dict,
    load.TensorBatch: PlainConverter.convert_dict,
    set: PlainConverter.convert_set,
    frozenset: PlainConverter.convert_set,
    load.Scalar: PlainConverter.convert_scalar,
    load.Array: PlainConverter.convert_small_array,
    load.Tensor: PlainConverter.convert_tensor,
    load.Size: PlainConverter.convert_tuple,
    load.Stack: PlainConverter.convert_stack,
    load.Datum: PlainConverter.convert_datum,
    **dict.fromkeys((load.Piece, load.Name, load.Nested, load.Storage), PlainConverter.convert_other),
    **dict.fromkeys((load.Consolidated, load.Tree, load.Proto, load.Rollout), PlainConverter.convert_other),
    **dict.fromkeys((load.Dtype, load.Buffer), PlainConverter.convert_other),
}
