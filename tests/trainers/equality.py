"""Used by the trainers' environment: whether two batches of verl, or parts of them, are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.protocol import DataProto

JAGGED = ("_values", "_offsets", "_lengths")
TENSOR = ("dtype", "shape", "layout", "device", "requires_grad")


def compare(one: Any, other: Any, where: str) -> None:
    """Raises AssertionError unless both are equal in every value, type (numpy's included) and order, but for the order
    of the fields of a TensorDict."""
    assert type(one) is type(other), f"{where}: {type(one)}, {type(other)}"
    parts = PARTS.get(type(one))
    if parts is not None:
        compare(parts(one), parts(other), where)
    elif isinstance(one, dict):
        assert list(one) == list(other), f"{where}: {list(one)}, {list(other)}"
        for name, value in one.items():
            compare(value, other[name], f"{where}.{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for position, pair in enumerate(zip(one, other, strict=True)):
            compare(*pair, f"{where}[{position}]")
    elif isinstance(one, torch.Tensor):
        compare_tensors(one, other, where)
    else:
        same = one.tobytes() == other.tobytes() if isinstance(one, np.generic) else one == other
        assert same or (one != one and other != other), where


def compare_tensors(one: torch.Tensor, other: torch.Tensor, where: str) -> None:
    for name in TENSOR if not one.is_nested else ("dtype", "layout", "_min_seqlen", "_max_seqlen"):
        assert getattr(one, name) == getattr(other, name), f"{where}: {name}"
    if one.is_nested:
        return compare(*({name: getattr(item, name) for name in JAGGED} for item in (one, other)), where)
    same = torch.equal(*(item.contiguous().reshape(-1).view(torch.uint8) for item in (one, other)))  # NaN equals itself
    assert same, where


def array(value: np.ndarray) -> tuple[Any, ...]:
    content = value.ravel().tolist() if value.dtype == object else value.tobytes()
    return value.dtype.str, value.shape, value.flags.writeable, content


PARTS: dict[type, Any] = {
    DataProto: lambda item: {"batch": item.batch, "columns": item.non_tensor_batch, "meta": item.meta_info},
    TensorDict: lambda item: {
        "of": (item.batch_size, item.device, item.names),
        "fields": dict(sorted(item._tensordict.items())),
    },
    NonTensorStack: lambda item: {"of": (item.batch_size, item.stack_dim), "rows": item.tensordicts},
    NonTensorData: lambda item: {"of": (item.batch_size, item.device), "value": item.__dict__["_non_tensordict"]},
    np.ndarray: array,
}
