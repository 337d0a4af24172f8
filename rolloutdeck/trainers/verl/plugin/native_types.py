"""Converts the values that the safe reader found in a dump to Python, numpy and torch objects of the same types.

The result is that of unpickling, without unpickling: the reader's placeholders describe each value, and only the types
below are built. Other classes are refused by name.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.load import Array, Dtype, Nested, Piece, Scalar, Size, Tensor, Unreadable, read_bytes_into
from rolloutdeck.trainers.verl.plugin import tensors

MAX_DEPTH = 100
PLAIN_TYPES = {type(None), bool, int, float, str, bytes}
OBJECT_DTYPE = np.dtype(object)


class NativeBuilder:
    """Builds values. A value that occurs several times in the dump is built once.

    Values are identified by their placeholders, which must not be freed meanwhile.
    """

    def __init__(self) -> None:
        self.built: dict[int, Any] = {}
        self.depth = 0

    def value(self, value: Any) -> Any:
        """Returns the built value. Raises SafePickleError if it can't be built."""
        if type(value) in PLAIN_TYPES:
            return value
        if id(value) not in self.built:
            self.built[id(value)] = self._build(value)
        return self.built[id(value)]

    def _build(self, value: Any) -> Any:
        build = BUILDERS.get(type(value))
        if build is None:
            description = value.name if isinstance(value, Unreadable) else f"a {type(value).__name__.lower()}"
            raise SafePickleError(f"it has a value that can't be rebuilt: {description}")
        if self.depth >= MAX_DEPTH:
            raise SafePickleError(f"values nested deeper than {MAX_DEPTH} levels")
        self.depth += 1
        result = build(self, value)
        self.depth -= 1
        return result

    def list_of(self, value: Any) -> Any:
        return [self.value(item) for item in value]

    def tuple_of(self, value: Any) -> Any:
        return tuple([self.value(item) for item in value])

    def dict_of(self, value: Any) -> Any:
        return type(value)((self.value(key), self.value(item)) for key, item in value.items())

    def set_of(self, value: Any) -> Any:
        return type(value)(map(self.value, value))

    def scalar(self, value: Scalar) -> Any:
        """Returns a scalar of its own type: `numpy.float32(1)`, not 1.0. An empty text has no bytes."""
        dtype = np.dtype(value.dtype.code)
        return np.frombuffer(value.data, dtype)[0] if value.data else dtype.type()

    def array(self, value: Array) -> Any:
        """Returns an array that owns its memory and is writable, like an unpickled one."""
        if not isinstance(value.dtype, Dtype):
            description = value.dtype.name if value.dtype else "an empty array"
            raise SafePickleError(f"it has a value that can't be rebuilt: {description}")
        if isinstance(value.data, list):
            return self._objects(value.data, value.shape)
        result = np.empty(value.shape, np.dtype(value.dtype.code))
        if value.data is None or result.nbytes != len(value.data):
            raise SafePickleError(f"an array of shape {value.shape} with other bytes than its own")
        if result.nbytes:
            read_bytes_into(result.reshape(-1).view(np.uint8).data, value.data)
        return result

    def _objects(self, values: list[Any], shape: tuple[int, ...]) -> Any:
        """Returns an object array, filled by `__setstate__`: an assignment would split items that are arrays."""
        if len(values) != math.prod(shape):
            raise SafePickleError(f"an array of shape {shape} with {len(values):,} values")
        result: Any = np.empty(0, OBJECT_DTYPE)
        result.__setstate__((1, shape, OBJECT_DTYPE, False, [self.value(item) for item in values]))
        return result


BUILDERS: dict[type, Callable[[NativeBuilder, Any], Any]] = {
    list: NativeBuilder.list_of,
    tuple: NativeBuilder.tuple_of,
    dict: NativeBuilder.dict_of,
    OrderedDict: NativeBuilder.dict_of,
    set: NativeBuilder.set_of,
    frozenset: NativeBuilder.set_of,
    Piece: lambda builder, value: value.read(0, len(value)),
    Dtype: lambda builder, value: np.dtype(value.code),
    Scalar: NativeBuilder.scalar,
    Array: NativeBuilder.array,
    Size: lambda builder, value: torch.Size(value),
    Tensor: lambda builder, value: tensors.build_single_tensor(value),
    Nested: lambda builder, value: tensors.build_nested_tensor(value),
}
