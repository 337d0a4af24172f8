"""Used by the trainers' environment: whether two batches of verl, or parts of them, are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.protocol import DataProto

JAGGED = ("_values", "_offsets", "_lengths")
TENSOR = ("dtype", "shape", "layout", "device", "requires_grad")


def compare(left: Any, right: Any, where: str) -> None:
    """Raises AssertionError unless both are equal in every value, type (numpy's included) and order, but for the order
    of the fields of a TensorDict."""
    assert type(left) is type(right), f"{where}: {type(left)}, {type(right)}"
    parts = PARTS.get(type(left))
    if parts is not None:
        compare(parts(left), parts(right), where)
    elif isinstance(left, dict):
        assert list(left) == list(right), f"{where}: {list(left)}, {list(right)}"
        for name, value in left.items():
            compare(value, right[name], f"{where}.{name}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for position, pair in enumerate(zip(left, right, strict=True)):
            compare(*pair, f"{where}[{position}]")
    elif isinstance(left, torch.Tensor):
        compare_tensors(left, right, where)
    else:
        same = left.tobytes() == right.tobytes() if isinstance(left, np.generic) else left == right
        assert same or (left != left and right != right), where


def compare_tensors(left: torch.Tensor, right: torch.Tensor, where: str) -> None:
    for name in TENSOR if not left.is_nested else ("dtype", "layout", "_min_seqlen", "_max_seqlen"):
        assert getattr(left, name) == getattr(right, name), f"{where}: {name}"
    if left.is_nested:
        return compare(*({name: getattr(item, name) for name in JAGGED} for item in (left, right)), where)
    same = torch.equal(
        *(item.contiguous().reshape(-1).view(torch.uint8) for item in (left, right))
    )  # NaN equals itself
    assert same, where


def split_array(value: np.ndarray) -> tuple[Any, ...]:
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
    np.ndarray: split_array,
}
