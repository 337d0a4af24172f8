"""The values that the safe reader found in a dump, as real Python, numpy and torch objects of the same types.

What unpickling would give, made without it: the reader's stand-ins say what each value was, and only the kinds below
are built. A value whose own class would have to make it is refused by name.
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
ITSELF = {type(None), bool, int, float, str, bytes}
OBJECT = np.dtype(object)


class NativeBuilder:
    """What is shared in the dump is shared in what is made. Values are known by their stand-ins, which must live on."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.depth = 0

    def value(self, value: Any) -> Any:
        """Raises SafePickleError for what can't be built."""
        if type(value) in ITSELF:
            return value
        if id(value) not in self.made:
            self.made[id(value)] = self._make(value)
        return self.made[id(value)]

    def _make(self, value: Any) -> Any:
        make = MAKE.get(type(value))
        if make is None:
            what = value.name if isinstance(value, Unreadable) else f"a {type(value).__name__.lower()}"
            raise SafePickleError(f"it holds what is not built here: {what}")
        if self.depth >= MAX_DEPTH:
            raise SafePickleError(f"values nested deeper than {MAX_DEPTH} levels")
        self.depth += 1
        made = make(self, value)
        self.depth -= 1
        return made

    def list_of(self, value: Any) -> Any:
        return [self.value(one) for one in value]

    def tuple_of(self, value: Any) -> Any:
        return tuple([self.value(one) for one in value])

    def dict_of(self, value: Any) -> Any:
        return type(value)((self.value(key), self.value(one)) for key, one in value.items())

    def set_of(self, value: Any) -> Any:
        return type(value)(map(self.value, value))

    def bytes_of(self, value: Piece) -> Any:
        return value.read(0, len(value))

    def dtype(self, value: Dtype) -> Any:
        return np.dtype(value.code)

    def scalar(self, value: Scalar) -> Any:
        """Of its own type: `numpy.float32(1)`, not 1.0. No text has no bytes."""
        dtype = np.dtype(value.dtype.code)
        return np.frombuffer(value.data, dtype)[0] if value.data else dtype.type()

    def array(self, value: Array) -> Any:
        """An array that owns its memory and may be written, as one that was unpickled."""
        if not isinstance(value.dtype, Dtype):
            raise SafePickleError(
                f"it holds what is not built here: {value.dtype.name if value.dtype else 'an empty array'}"
            )
        if isinstance(value.data, list):
            return self._objects(value.data, value.shape)
        made = np.empty(value.shape, np.dtype(value.dtype.code))
        if value.data is None or made.nbytes != len(value.data):
            raise SafePickleError(f"an array of shape {value.shape} with other bytes than its own")
        if made.nbytes:
            read_bytes_into(made.reshape(-1).view(np.uint8).data, value.data)
        return made

    def _objects(self, values: list[Any], shape: tuple[int, ...]) -> Any:
        """By numpy's own way to fill one, since an item that is an array would be taken apart by an assignment."""
        if len(values) != math.prod(shape):
            raise SafePickleError(f"an array of shape {shape} with {len(values):,} values")
        made: Any = np.empty(0, OBJECT)
        made.__setstate__((1, shape, OBJECT, False, [self.value(one) for one in values]))
        return made

    def size(self, value: Size) -> Any:
        return torch.Size(value)

    def tensor(self, value: Tensor) -> Any:
        return tensors.build_single_tensor(value)

    def nested(self, value: Nested) -> Any:
        return tensors.build_nested_tensor(value)


MAKE: dict[type, Callable[[NativeBuilder, Any], Any]] = {
    list: NativeBuilder.list_of,
    tuple: NativeBuilder.tuple_of,
    dict: NativeBuilder.dict_of,
    OrderedDict: NativeBuilder.dict_of,
    set: NativeBuilder.set_of,
    frozenset: NativeBuilder.set_of,
    Piece: NativeBuilder.bytes_of,
    Dtype: NativeBuilder.dtype,
    Scalar: NativeBuilder.scalar,
    Array: NativeBuilder.array,
    Size: NativeBuilder.size,
    Tensor: NativeBuilder.tensor,
    Nested: NativeBuilder.nested,
}
