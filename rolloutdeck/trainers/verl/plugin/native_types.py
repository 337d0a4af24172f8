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

from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.load.placeholders import (
    Array,
    Dtype,
    Nested,
    Piece,
    Scalar,
    Size,
    Tensor,
    Unreadable,
    fill,
)
from rolloutdeck.trainers.verl.plugin import tensors

MAX_DEPTH = 100
ITSELF = {type(None), bool, int, float, str, bytes}
OBJECT = np.dtype(object)


class Maker:
    """What is shared in the dump is shared in what is made. Values are known by their stand-ins, which must live on."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.depth = 0

    def value(self, value: Any) -> Any:
        """Raises Refused for what can't be built."""
        if type(value) in ITSELF:
            return value
        if id(value) not in self.made:
            self.made[id(value)] = self._make(value)
        return self.made[id(value)]

    def _make(self, value: Any) -> Any:
        make = MAKE.get(type(value))
        if make is None:
            what = value.name if isinstance(value, Unreadable) else f"a {type(value).__name__.lower()}"
            raise Refused(f"it holds what is not built here: {what}")
        if self.depth >= MAX_DEPTH:
            raise Refused(f"values nested deeper than {MAX_DEPTH} levels")
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
            raise Refused(f"it holds what is not built here: {value.dtype.name if value.dtype else 'an empty array'}")
        if isinstance(value.data, list):
            return self._objects(value.data, value.shape)
        made = np.empty(value.shape, np.dtype(value.dtype.code))
        if value.data is None or made.nbytes != len(value.data):
            raise Refused(f"an array of shape {value.shape} with other bytes than its own")
        if made.nbytes:
            fill(made.reshape(-1).view(np.uint8).data, value.data)
        return made

    def _objects(self, values: list[Any], shape: tuple[int, ...]) -> Any:
        """By numpy's own way to fill one, since an item that is an array would be taken apart by an assignment."""
        if len(values) != math.prod(shape):
            raise Refused(f"an array of shape {shape} with {len(values):,} values")
        made: Any = np.empty(0, OBJECT)
        made.__setstate__((1, shape, OBJECT, False, [self.value(one) for one in values]))
        return made

    def size(self, value: Size) -> Any:
        return torch.Size(value)

    def tensor(self, value: Tensor) -> Any:
        return tensors.single(value)

    def nested(self, value: Nested) -> Any:
        return tensors.nested(value)


MAKE: dict[type, Callable[[Maker, Any], Any]] = {
    list: Maker.list_of,
    tuple: Maker.tuple_of,
    dict: Maker.dict_of,
    OrderedDict: Maker.dict_of,
    set: Maker.set_of,
    frozenset: Maker.set_of,
    Piece: Maker.bytes_of,
    Dtype: Maker.dtype,
    Scalar: Maker.scalar,
    Array: Maker.array,
    Size: Maker.size,
    Tensor: Maker.tensor,
    Nested: Maker.nested,
}
